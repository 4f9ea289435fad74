// The search of the site runs in a worker. A browser starts none for a page that is read from the disk (file://), so
// there a hidden frame takes its place. The plugin `offline` would load another site's script for that.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = (this.inner = frame.contentWindow)
      inner.document.write("<body></body>")
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = Object.assign(inner.document.createElement("script"), { src, onload: resolve, onerror: reject })
          inner.document.body.append(script)
        })
      inner.importScripts = async (...urls) => {
        for (const each of urls) await load(each)
      }
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
