// Goes through what an agent does with `capsule mcp`, with one of the two TypeScript SDKs, over one transport.
//
//     main.mjs SDK ERA TRANSPORT SERVER     SDK: sdk1 or client2; SERVER: JSON of { command, env, url, headers, capsule }
//
// `capsule` is the command line by which another process writes to the same store. Prints a line for each step,
// {"step", "ok", "error"}; nothing is waited for by a clock but the one that gives up.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { promisify } from "node:util";

const [sdk, era, transport, described] = process.argv.slice(2);
const server = JSON.parse(described);
const { connect } = await import(`./${sdk}.mjs`);
const GIVE_UP_MS = 20_000;

// Another process, on the same store.
async function capsule(...words) {
  const [program, ...first] = server.capsule;
  return (await promisify(execFile)(program, [...first, ...words], { env: server.env })).stdout.trim();
}

// Something that will happen: `it.now(value)` says that it did, and `await it.soon(what)` waits for it.
function awaited() {
  let now;
  const promise = new Promise((resolve) => (now = resolve));
  return {
    now,
    soon: (what) => {
      let timer;
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`${what}: not in ${GIVE_UP_MS} ms`)), GIVE_UP_MS);
      });
      return Promise.race([promise, late]).finally(() => clearTimeout(timer));
    },
  };
}

function told(result) {
  const text = result.content.map((part) => part.text ?? "").join("\n");
  assert.ok(!result.isError, text);
  return text;
}

let failed = false;
async function step(name, run) {
  try {
    await run();
    console.log(JSON.stringify({ step: name, ok: true }));
  } catch (error) {
    failed = true;
    console.log(JSON.stringify({ step: name, ok: false, error: String(error?.stack ?? error) }));
  }
}

const questions = [];
let answer = { action: "decline" };
let updated = awaited();
const about = {
  name: "capsule-typescript",
  era,
  onQuestion: (asked) => {
    questions.push(asked);
    return answer;
  },
  onUpdate: (uri) => updated.now(uri),
};

const id = await capsule("new", "--type", "group", "From TypeScript");
const uri = `capsule://conversations/${id}`;
let session;

await step("connect", async () => {
  session = await connect(server, about);
  assert.equal(session.client.getServerVersion().name, "capsule");
  const can = session.client.getServerCapabilities();
  assert.ok(can.tools && can.prompts && can.completions, JSON.stringify(can));
  assert.ok(can.resources.subscribe, JSON.stringify(can));
  assert.ok(session.protocol().startsWith(era), `${session.protocol()} is not of ${era}`);
});
if (!session) process.exit(1);

await step("nobody comes in with a wrong token", async () => {
  if (transport !== "http") return;
  for (const headers of [{}, { Authorization: "Bearer capsule_wrong" }])
    await assert.rejects(connect({ ...server, headers }, about), /401|token/i);
});

await step("tools/list", async () => {
  const { tools } = await session.client.listTools();
  const names = tools.map((tool) => tool.name);
  for (const name of ["append_message", "read_conversation", "search", "watch_changes", "delete_conversation"])
    assert.ok(names.includes(name), `${name} is not in ${names}`);
});

await step("append and read", async () => {
  const values = { id, content: "said by TypeScript: ünïcödé 🦊", idempotencyKey: `${sdk} ${era} ${transport}` };
  const first = await session.call("append_message", values);
  const again = await session.call("append_message", values);
  told(first);
  told(again);
  assert.deepEqual(again.structuredContent.message, first.structuredContent.message);
  assert.ok(told(await session.call("read_conversation", { id })).includes(values.content));
  const shown = JSON.parse(await capsule("show", id, "--json"));
  assert.equal(JSON.stringify(shown).split(values.content).length - 1, 1, "it is there once");
});

await step("an error the model can act on", async () => {
  const result = await session.call("read_conversation", { id: "00000000-0000-4000-8000-000000000000" });
  assert.equal(result.isError, true);
  assert.match(result.content[0].text, /00000000-0000-4000-8000-000000000000/);
});

await step("subscribe, and hear of another process", async () => {
  const unsubscribe = await session.subscribe(uri);
  updated = awaited();
  await capsule("append", id, "said by another process");
  assert.equal(await updated.soon("resources/updated"), uri);
  const read = await session.client.readResource({ uri });
  assert.ok(read.contents[0].text.includes("said by another process"));
  await unsubscribe();
});

await step("resources, prompts and completion", async () => {
  const { resources } = await session.client.listResources();
  assert.ok(resources.some((resource) => resource.uri === uri || resource.uri === "capsule://conversations"));
  const { resourceTemplates } = await session.client.listResourceTemplates();
  const template = resourceTemplates.find(({ uriTemplate }) => uriTemplate === "capsule://conversations/{id}");
  assert.ok(template, JSON.stringify(resourceTemplates));
  const asked = { ref: { type: "ref/resource", uri: template.uriTemplate }, argument: { name: "id", value: id.slice(0, 4) } };
  assert.deepEqual((await session.client.complete(asked)).completion.values, [id]);
  const { prompts } = await session.client.listPrompts();
  assert.ok(prompts.some(({ name }) => name === "summarize_conversation"));
  const prompt = { name: "summarize_conversation", arguments: { conversation: id } };
  const { messages } = await session.client.getPrompt(prompt);
  assert.ok(messages[0].content.text.includes("said by another process"));
  await assert.rejects(session.client.readResource({ uri: `${uri.slice(0, -4)}0000` }));
  await assert.rejects(session.client.getPrompt({ name: "no_such_prompt" }));
});

// The cursor from which on nothing has happened yet.
async function here() {
  const result = await session.call("watch_changes", { seconds: 0 });
  told(result);
  return result.structuredContent.cursor;
}

await step("progress, and a change, while it waits", async () => {
  const begun = awaited();
  const waiting = session.call("watch_changes", { cursor: await here() }, { onprogress: begun.now });
  waiting.catch(() => {}); // Looked at below; until then it isn't lost, should another line fail first.
  const progress = await begun.soon("progress");
  assert.equal(typeof progress.progress, "number");
  await capsule("append", id, "said while it waits");
  const { changes, cursor } = (await waiting).structuredContent;
  assert.ok(cursor);
  assert.ok(
    changes.some((change) => change.id === id && change.kind === "appended"),
    JSON.stringify(changes),
  );
});

await step("an abort ends the wait, and the server goes on", async () => {
  const cursor = await here();
  const abort = new AbortController();
  const begun = awaited();
  const waiting = session.call("watch_changes", { cursor }, { signal: abort.signal, onprogress: begun.now });
  const refused = assert.rejects(waiting);
  refused.catch(() => {}); // Looked at below; until then it isn't lost, should another line fail first.
  await begun.soon("progress");
  abort.abort("changed my mind");
  await refused;
  told(await session.call("list_conversations", {}));
  await capsule("append", id, "said after the abort");
  const { changes } = (await session.call("watch_changes", { cursor })).structuredContent;
  assert.ok(changes.some((change) => change.id === id));
});

await step("many calls at once", async () => {
  const said = Array.from({ length: 20 }, (_, number) => `at once ${number}`);
  await Promise.all(said.map(async (content) => told(await session.call("append_message", { id, content }))));
  const text = await capsule("show", id);
  for (const content of said) assert.ok(text.includes(content), content);
});

await step("a client that can't be asked deletes nothing", async () => {
  const silent = await connect(server, { ...about, onQuestion: undefined });
  const result = await silent.call("delete_conversation", { id });
  assert.equal(result.isError, true);
  assert.match(result.content[0].text, /[Nn]othing was done/);
  await silent.close();
  await capsule("show", id);
});

await step("asked, and declined: nothing is deleted", async () => {
  answer = { action: "decline" };
  const result = await session.call("delete_conversation", { id });
  assert.equal(result.isError, true);
  assert.equal(questions.length, 1);
  assert.ok(questions[0].message.includes(id), questions[0].message);
  await capsule("show", id);
});

await step("asked, and agreed: it is deleted", async () => {
  answer = { action: "accept", content: { yes: true } };
  told(await session.call("delete_conversation", { id }));
  assert.equal(questions.length, 2);
  assert.ok((await capsule("trash", "list")).includes(id.slice(0, 8)));
});

await step("close", () => session.close());
process.exit(failed ? 1 : 0);
