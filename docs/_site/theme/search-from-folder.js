// Browsers make no worker from a file. In pages that were opened from a folder the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = new URL(url, location)
      this.send = new Promise(loaded => { script.onload = loaded })
        .then(() => data => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
      inside.document.body.append(script)
    }
    postMessage(data) {
      this.send.then(send => send(data))
    }
  }
}
