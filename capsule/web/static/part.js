// Parts of our own pages, drawn by the server, with times in the zone of whoever reads.
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Write the times below a node in the reader's zone. */
export function inZone(node) {
  for (const time of node.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (!isNaN(date)) time.textContent = short.format(date);
  }
}

/** The block of a page that is named `name`, as the body of a document. Nothing in it runs. */
export async function part(address, name, signal) {
  const url = new URL(address, location);
  url.searchParams.set("part", name);
  const answer = await fetch(url, { signal, headers: { accept: "text/html" } });
  const { body } = new DOMParser().parseFromString(await answer.text(), "text/html");
  inZone(body);
  return body;
}
