// The client of @modelcontextprotocol/sdk 1.x, of the 2025 era: a handshake, a session, resources/subscribe.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema, ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

// This program reads the data of an answer as well as its text.
const takes = { experimental: { "capsule/answers": { takes: ["text", "data"] } } };

export async function connect(server, { name, onQuestion, onUpdate }) {
  const client = new Client({ name, version: "1" }, { capabilities: { ...takes, ...(onQuestion ? { elicitation: {} } : {}) } });
  if (onQuestion) client.setRequestHandler(ElicitRequestSchema, (request) => onQuestion(request.params));
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => onUpdate?.(params.uri));
  const transport = server.url
    ? new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: server.headers } })
    : new StdioClientTransport({ command: server.command[0], args: server.command.slice(1), env: server.env });
  // Over HTTP the SDK keeps the version it agreed on; over stdio nowhere.
  let protocol = "";
  transport.setProtocolVersion = ((keep) => (version) => {
    protocol = version;
    keep?.call(transport, version);
  })(transport.setProtocolVersion);
  await client.connect(transport);
  return {
    client,
    protocol: () => protocol,
    call: (tool, values, options) => client.callTool({ name: tool, arguments: values }, undefined, options),
    subscribe: async (uri) => {
      await client.subscribeResource({ uri });
      return () => client.unsubscribeResource({ uri });
    },
    close: async () => {
      if (server.url) await transport.terminateSession();
      await client.close();
    },
  };
}
