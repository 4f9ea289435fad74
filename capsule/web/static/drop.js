// Files that are dropped anywhere on a page are imported: they are sent as the form of /import sends them.
const link = document.getElementById("import");
const hasFiles = (event) => link && event.dataTransfer?.types.includes("Files");

document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  document.body.classList.remove("dropping");
  if (!hasFiles(event)) return;
  event.preventDefault();
  const form = document.createElement("form");
  const input = document.createElement("input");
  Object.assign(form, { method: "post", action: link.href, enctype: "multipart/form-data", hidden: true });
  Object.assign(input, { type: "file", name: "files", multiple: true, files: event.dataTransfer.files });
  form.append(input);
  document.body.append(form);
  form.submit();
});
