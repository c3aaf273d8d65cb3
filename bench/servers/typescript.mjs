// A server of skills made of a TypeScript package, as its documentation starts one.
// Arguments: "ext-skills" or "typescript-sdk", the folder, and a port for HTTP.
import { createMcpHandler, McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const [library, folder, port] = process.argv.slice(2);
const about = { name: "skills", version: "0" };

const libraries = {
  async "ext-skills"() {
    const { discoverSkills, registerSkillResources } = await import("@olaservo/ext-skills/server");
    const skills = discoverSkills(folder);
    return (server) => registerSkillResources(server, skills, folder, { template: true, directoryRead: true });
  },
  async "typescript-sdk"() {
    const { loadSkills } = await import("@modelcontextprotocol/server/ext/skills/node");
    const skills = await loadSkills(folder);
    return (server) => skills.attach(server);
  },
};

const attach = await libraries[library]();
const make = () => {
  const server = new McpServer(about, { capabilities: { resources: {} } });
  attach(server);
  return server;
};

if (port) {
  const { createServer } = await import("node:http");
  const { toNodeHandler } = await import("@modelcontextprotocol/node");
  createServer(toNodeHandler(createMcpHandler(make))).listen(Number(port), "127.0.0.1");
} else {
  serveStdio(make);
}
