// Times in the zone of whoever reads.
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Write the times below a node in the reader's zone. */
export function inZone(node) {
  for (const time of node.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (!isNaN(date)) time.textContent = short.format(date);
  }
}
