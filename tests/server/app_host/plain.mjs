// A minimal host of MCP Apps: it answers requests of the view, and passes on its notifications.
export function connect(view, host) {
  const send = (message) => view.contentWindow.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const notify = (name, params) => send({ method: `ui/notifications/${name}`, params });
  const answers = {
    "ui/initialize": ({ protocolVersion }) => ({
      protocolVersion, hostInfo: host.info, hostCapabilities: host.capabilities, hostContext: host.context,
    }),
    "tools/call": host.callTool,
    "ui/update-model-context": host.updateModelContext,
  };
  window.addEventListener("message", async ({ source, data }) => {
    if (source !== view.contentWindow) return;
    if (data.method === "ui/notifications/initialized") host.ready();
    if (data.method === "ui/notifications/size-changed") host.resize(data.params);
    if (data.method === undefined && data.id === 0) host.answered(data);
    if (data.method !== undefined && data.id !== undefined) {
      send({ id: data.id, result: await answers[data.method](data.params) });
    }
  });
  return {
    sendToolInput: (params) => notify("tool-input", params),
    sendToolResult: (params) => notify("tool-result", params),
    sendToolCancelled: (params) => notify("tool-cancelled", params),
    sendHostContextChange: (params) => notify("host-context-changed", params),
    teardownResource: (params) => new Promise((resolve) => {
      host.answered = ({ result }) => resolve(result);
      send({ id: 0, method: "ui/resource-teardown", params });
    }),
  };
}
