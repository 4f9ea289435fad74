// Parts of our own pages, drawn by the server.
import { inZone } from "./times.js";

/** The block of a page that is named `name`, as the body of a document. Nothing in it runs. */
export async function part(address, name, signal) {
  const url = new URL(address, location);
  url.searchParams.set("part", name);
  const answer = await fetch(url, { signal, headers: { accept: "text/html" } });
  const { body } = new DOMParser().parseFromString(await answer.text(), "text/html");
  inZone(body);
  return body;
}
