// The client of @modelcontextprotocol/client 2.x, in both eras: that of 2026 has no handshake and no session, and
// subscribes by subscriptions/listen.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const eras = { 2025: { mode: "legacy" }, 2026: { mode: { pin: "2026-07-28" } } };

// This program reads the data of an answer as well as its text.
const takes = { experimental: { "capsule/answers": { takes: ["text", "data"] } } };

export async function connect(server, { name, era, onQuestion, onUpdate }) {
  const client = new Client(
    { name, version: "1" },
    { capabilities: { ...takes, ...(onQuestion ? { elicitation: { form: {} } } : {}) }, versionNegotiation: eras[era] },
  );
  if (onQuestion) client.setRequestHandler("elicitation/create", (request) => onQuestion(request.params));
  client.setNotificationHandler("notifications/resources/updated", ({ params }) => onUpdate?.(params.uri));
  const transport = server.url
    ? new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: server.headers } })
    : new StdioClientTransport({ command: server.command[0], args: server.command.slice(1), env: server.env });
  await client.connect(transport);
  return {
    client,
    protocol: () => client.getNegotiatedProtocolVersion(),
    call: (tool, values, options) => client.callTool({ name: tool, arguments: values }, options),
    subscribe: async (uri) => {
      if (era === "2025") {
        await client.subscribeResource({ uri });
        return () => client.unsubscribeResource({ uri });
      }
      const listening = await client.listen({ resourceSubscriptions: [uri] });
      return () => listening.close();
    },
    close: async () => {
      if (server.url && era === "2025") await transport.terminateSession();
      await client.close();
    },
  };
}
