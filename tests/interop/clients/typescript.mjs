// Drives a TypeScript client library against a server and writes what it saw to stdout, in the form of checks.json.
// Arguments: library ("sdk" or "ext-skills"), protocol version, target as JSON ({url} or {command, args}).
import { isDeepStrictEqual } from "node:util";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const [library, version, targetJson] = process.argv.slice(2);
const target = JSON.parse(targetJson);
const checks = [];

async function check(id, work) {
  try {
    const wrong = await work();
    checks.push(wrong ? { id, status: "FAILURE", errorMessage: wrong } : { id, status: "SUCCESS" });
  } catch (error) {
    checks.push({ id, status: "FAILURE", errorMessage: String(error).slice(0, 400) });
  }
}

// The same operations by the names of each library. `load` and `read` verify sizes and digests, and `load` the frontmatter.
const libraries = {
  async sdk(client) {
    const { SkillsClient } = await import("@modelcontextprotocol/client/ext/skills");
    const skills = new SkillsClient(client);
    const verified = async (file) => ((await file).verified ? "" : "not verified");
    return {
      supported: () => skills.supported && skills.directoryRead,
      list: async () => (await skills.list()).skills,
      get: async (uri) => (await skills.get(uri)).skill,
      load: (entry) => verified(skills.read(entry)),
      read: (entry, uri) => verified(skills.read(entry, uri)),
      directory: async (uri) => (await skills.readDirectory(uri)).resources,
    };
  },
  async "ext-skills"(client) {
    const ext = await import("@olaservo/ext-skills/client");
    const nothing = async (work) => void (await work);
    return {
      supported: () => ext.serverSupportsSkills(client) && ext.serverSupportsDirectoryRead(client),
      list: () => ext.listSkills(client),
      get: (uri) => ext.getSkill(client, uri),
      load: (entry) => nothing(ext.readSkill(client, entry)),
      read: (entry, uri) => nothing(ext.readSkillResource(client, entry, uri)),
      directory: async (uri) => (await ext.readDirectory(client, uri)).resources,
    };
  },
};

const options = version === "2025-11-25" ? {} : { versionNegotiation: { mode: { pin: version } } };
const client = new Client({ name: "interop", version: "1" }, options);
const transport = target.url
  ? new StreamableHTTPClientTransport(new URL(target.url))
  : new StdioClientTransport({ command: target.command, args: target.args, stderr: "ignore" });
await client.connect(transport);

// The library validates what a tool returns against the output schema that it listed.
async function checkToolsAndPrompts() {
  const call = (name, args) => client.callTool({ name, arguments: args });
  let tools = [];
  await check("tools/list", async () => void ({ tools } = await client.listTools()));
  for (const { name, title, description, inputSchema } of tools) {
    await check(`tool ${name}`, () => (title && description && inputSchema.type === "object" ? "" : "not described"));
  }
  let listed = [];
  await check("skills_list", async () => {
    listed = (await call("skills_list", { limit: 200 })).structuredContent.skills;
  });
  for (const { name, location } of listed) {
    await check(`use ${name}`, async () => {
      const { session, active_skills: [loaded] } = (await call("skills_load", { names: [name] })).structuredContent;
      const read = await call("skills_read", { path: "SKILL.md", session });
      if (loaded.location !== location) return `loaded ${loaded.location}, listed ${location}`;
      if (read.isError || !/^\ufeff?---\r?\n/.test(read.content[0].text)) return `not read: ${read.content[0].text}`;
      const left = await call("skills_unload", { all: true, session });
      return left.structuredContent.active_skills.length ? "still loaded" : "";
    });
  }
  await check("unknown session", async () => {
    const { isError, content } = await call("skills_read", { path: "SKILL.md", session: "nobody" });
    return isError && content[0].text.includes("skills_load") ? "" : "no remedy in the error";
  });
  let prompts = [];
  await check("prompts/list", async () => void ({ prompts } = await client.listPrompts()));
  for (const { name, arguments: declared = [] } of prompts) {
    await check(`prompt ${name}`, async () => {
      const given = Object.fromEntries(declared.filter((each) => each.required).map((each) => [each.name, "this"]));
      const { messages } = await client.getPrompt({ name, arguments: given });
      return messages[0].content.text.includes("<skill name=") ? "" : "no skill in the prompt";
    });
  }
  if (prompts.some(({ name }) => name === "meeting-notes")) {
    await check("completion/complete", async () => {
      const ref = { type: "ref/prompt", name: "meeting-notes" };
      const { completion } = await client.complete({ ref, argument: { name: "audience", value: "every" } });
      return isDeepStrictEqual(completion.values, ["everybody who took part"]) ? "" : `${completion.values}`;
    });
  }
}

const skills = await libraries[library](client);
let entries = [];
await check("era", () => (client.getNegotiatedProtocolVersion() === version ? "" : client.getNegotiatedProtocolVersion()));
await check("supported", () => (skills.supported() ? "" : "no extension or no directoryRead"));
await check("list", async () => void (entries = await skills.list()));
for (const entry of entries) {
  await check(`skill ${entry.uri}`, async () =>
    isDeepStrictEqual(await skills.get(entry.uri), entry) ? "" : "skills/get differs from skills/list",
  );
  await check(`load ${entry.uri}`, () => skills.load(entry));
  for (const { uri } of entry.resources) {
    await check(`file ${entry.uri} ${uri}`, () => skills.read(entry, uri));
  }
  await check(`directory ${entry.uri}`, async () => {
    const children = await skills.directory(entry.uri.replace(/\/SKILL\.md$/, ""));
    return children.some(({ uri }) => uri === entry.uri) ? "" : "SKILL.md is not among the children";
  });
}
await check("unknown", async () => {
  try {
    await skills.get("skill://nobody/has/this/SKILL.md");
  } catch (error) {
    return error.code === -32602 ? "" : `code ${error.code}`;
  }
  return "no error";
});
if (library === "sdk") await checkToolsAndPrompts();
await client.close();
console.log(JSON.stringify(checks));
