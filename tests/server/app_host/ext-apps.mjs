// The host bridge of the npm package @modelcontextprotocol/ext-apps, which real hosts use.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

export async function connect(view, host) {
  const bridge = new AppBridge(null, host.info, host.capabilities, { hostContext: host.context });
  bridge.oncalltool = host.callTool;
  bridge.onupdatemodelcontext = host.updateModelContext;
  bridge.oninitialized = host.ready;
  bridge.onsizechange = host.resize;
  await bridge.connect(new PostMessageTransport(view.contentWindow, view.contentWindow));
  return bridge;
}
