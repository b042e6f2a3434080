// Search in pages that are opened from the folder: browsers start no worker from a file, so a hidden
// frame does a worker's work there. The theme's offline plugin looks for this name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        frame.onload = () => resolve(frame.contentWindow);
      });
      frame.receive = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.srcdoc = `<script>
        postMessage = (data) => frameElement.receive(data);
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: done });
          document.body.append(script);
        })), Promise.resolve());
      <\/script><body><script src="${new URL(url, location)}"><\/script>`;
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((there) => there.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
