// Files that are dropped anywhere on a page are imported, as by the form of /import.
const form = document.getElementById("dropped");
const hasFiles = (event) => form && event.dataTransfer?.types.includes("Files");

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
  form.elements.files.files = event.dataTransfer.files;
  form.submit();
});
