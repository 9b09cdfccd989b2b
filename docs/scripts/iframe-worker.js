// Search works in a Worker, which browsers do not start for pages that are read as files. There it runs in a hidden frame.
// (The theme would fetch such a script from elsewhere.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      const page = this.frame.contentDocument;
      // What the script finds in a worker: importScripts, and postMessage to whoever started it.
      inside.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => load(page, next)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.ready = load(page, url);
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };

  function load(page, url) {
    return new Promise((done, failed) => {
      const script = page.createElement("script");
      script.onload = done;
      script.onerror = failed;
      script.src = url;
      page.body.appendChild(script);
    });
  }
}
