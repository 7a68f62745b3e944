# SPDX-License-Identifier: BSD-3-Clause
"""A headless Chromium that opens a page, does what a script says, and sends back what it found.

Its WebGPU is SwiftShader, a Vulkan in software, behind Tint: another compiler and another device
than the ones that our kernels' other tests run on.
"""

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
WITHOUT_GPU = ("--disable-features=WebGPU", "--disable-gpu")
_SEND = """
<script>
(async () => {{
  const pause = () => new Promise((done) => setTimeout(done, 20));
  const until = async (ready) => {{ while (!ready()) await pause(); }};
  const find = (id) => document.getElementById(id);
  let found;
  try {{
    await until(() => document.documentElement.dataset.{ready});
    found = await (async () => {{ {script} }})();
  }} catch (error) {{ found = {{ error: String(error.stack || error) }}; }}
  await fetch("/found", {{ method: "POST", body: JSON.stringify(found) }});
}})();
</script>
"""


def opened(
    html: str,
    script: str,
    folder: Path,
    *,
    flags: tuple[str, ...] = SOFTWARE_GPU,
    seconds: float = 120,
    ready: str = "checked",
) -> Any:
    """What `script`, the body of an async function, returns once the page has checked itself.

    It may call `until(condition)` and `find(id)`. folder: for the browser's own files.
    ready: the data attribute of the page's root that says so
    Raises TimeoutError if nothing comes back.
    """
    assert CHROMIUM is not None
    content = html.replace("</body>", _SEND.format(script=script, ready=ready) + "</body>").encode()
    arrived = threading.Event()
    found: dict[str, Any] = {}
    server = ThreadingHTTPServer(("localhost", 0), _handler(content, found, arrived))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://localhost:{server.server_port}/"
    command = [CHROMIUM, *_QUIET, *flags, f"--user-data-dir={folder}", "--remote-debugging-port=0"]
    process = subprocess.Popen(
        [*command, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        if not arrived.wait(seconds):
            raise TimeoutError(f"the page sent nothing within {seconds} seconds")
    finally:
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
    return found["json"]


def _handler(
    content: bytes, found: dict[str, Any], arrived: threading.Event
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here = self.path == "/"
            self._answer(content if here else b"", "text/html; charset=utf-8", 200 if here else 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(b"", "text/plain", 200)
            found["json"] = json.loads(body)
            arrived.set()

        def _answer(self, body: bytes, kind: str, status: int) -> None:
            headers = {"Content-Type": kind, "Content-Length": str(len(body))}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    return Handler
