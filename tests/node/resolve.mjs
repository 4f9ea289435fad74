// Lets a script that stands in tests/ import what stands in .node/: node looks for packages beside and above the script
// only, and NODE_PATH holds for require() alone. `Installed.command` in ensure.py passes this file to --import.
import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";

const modules = pathToFileURL(process.env.CAPSULE_NODE_MODULES + "/").href;

registerHooks({
  resolve(name, context, next) {
    const ours = !context.parentURL?.includes("/node_modules/") && !/^(\.|\/|node:|file:)/.test(name);
    return next(name, ours ? { ...context, parentURL: modules } : context);
  },
});
