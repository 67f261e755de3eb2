#!/usr/bin/env python3
"""Records `longshore demo` and `longshore top` as SVG, from the real program. Needs tmux.

    cargo build --profile dist && docs/pictures/make.py [target/dist/longshore] [demo|top]

tmux is the terminal: its screen is read with colours a few times a second, and each row that
stays the same over several readings becomes one element of the picture.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
BYTES_MAX = 100_000
FRAMES_PER_S = 4
# How long a recording shows its last frame before it starts over.
LAST_FRAME_S = 6
CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.43, 18, 16
TEXT, BACKGROUND = "#d6dbe3", "#10151d"
COLOURS = ["#4b5563", "#f87171", "#6ee7a0", "#f5c56b", "#7cb7ff", "#d6a2f7", "#6fd9e6", "#d6dbe3"]


class Terminal:
    """A tmux server of its own that runs one command."""

    def __init__(self, command, columns, rows, folder):
        self.tmux = ["tmux", "-L", f"longshore-pictures-{os.getpid()}", "-f", "/dev/null"]
        size = ["-x", str(columns), "-y", str(rows)]
        # The sleep keeps the last screen.
        self.run("new-session", "-d", *size, "-c", folder, f"{command}; touch ended; sleep 600")
        self.ended = Path(folder, "ended")

    def run(self, *arguments):
        done = subprocess.run(
            [*self.tmux, *arguments], check=True, capture_output=True, text=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        return done.stdout

    def screen(self):
        return self.run("capture-pane", "-p", "-e").rstrip("\n").split("\n")

    def close(self):
        self.run("kill-server")


def colour_of(codes):
    """The colour of SGR parameters 38 or 48 with a palette or RGB."""
    kind = codes.pop(0)
    if kind == 2:
        return "#%02x%02x%02x" % tuple(codes.pop(0) for _ in range(3))
    n = codes.pop(0)
    if n < 16:
        return COLOURS[n % 8]
    if n < 232:
        levels = [0, 95, 135, 175, 215, 255]
        n -= 16
        return "#%02x%02x%02x" % (levels[n // 36], levels[n // 6 % 6], levels[n % 6])
    return "#%02x%02x%02x" % ((8 + 10 * (n - 232),) * 3)


def spans_of(line):
    """The parts of a row: text, and its style."""
    style, spans = {}, []
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        found = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if not found:
            if part:
                spans.append((re.sub(r"\x1b.", "", part), dict(style)))
            continue
        codes = [int(code or 0) for code in found[1].split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                style = {}
            elif code in (1, 2, 7):
                style[code] = True
            elif code == 22:
                style.pop(1, None), style.pop(2, None)
            elif code == 27:
                style.pop(7, None)
            elif code in (38, 48):
                style["fg" if code == 38 else "bg"] = colour_of(codes)
            elif code in (39, 49):
                style.pop("fg" if code == 39 else "bg", None)
            elif code // 10 in (3, 9):
                style["fg"] = COLOURS[code % 10]
            elif code // 10 in (4, 10):
                style["bg"] = COLOURS[code % 10]
    return spans


def row_as_svg(line, row, extra=""):
    """The elements of a row; none if it is blank."""
    y, column, shapes, texts = MARGIN + row * LINE_HEIGHT, 0, [], []
    for text, style in spans_of(line):
        front, back = style.get("fg", TEXT), style.get("bg")
        if style.get(7):
            front, back = back or BACKGROUND, front
        x, width = MARGIN + column * CELL_WIDTH, len(text) * CELL_WIDTH
        column += len(text)
        if back:
            shapes.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LINE_HEIGHT}"'
                f' fill="{back}"/>'
            )
        look = f' fill="{front}"' if front != TEXT else ""
        look += ' font-weight="bold"' if style.get(1) else ""
        look += ' opacity=".6"' if style.get(2) else ""
        # Not every program keeps several blanks in a text.
        for words in re.finditer(r"\S+(?: \S+)*", text):
            texts.append(
                f'<text x="{x + words.start() * CELL_WIDTH:.1f}" y="{y + 14}"'
                f' textLength="{len(words[0]) * CELL_WIDTH:.1f}"{look}>{escape(words[0])}</text>'
            )
    content = "".join(shapes + texts)
    return f"<g{extra}>{content}</g>" if content else ""


def svg(title, columns, rows, style, content):
    width = round(2 * MARGIN + columns * CELL_WIDTH)
    height = 2 * MARGIN + rows * LINE_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" fill="{TEXT}" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"
        f'"DejaVu Sans Mono",monospace}}{style}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n{content}\n</svg>\n'
    )


def still(title, columns, screen):
    rows = [row_as_svg(line, row) for row, line in enumerate(screen)]
    return svg(title, columns, len(screen), "", "\n".join(filter(None, rows)))


def recording(title, columns, frames):
    """Rows that stay the same over several frames are one element. Readers who prefer no motion,
    and programs without animation, show the last frame."""
    rows = max(len(screen) for _, screen in frames)
    total = frames[-1][0] + LAST_FRAME_S
    times = [at for at, _ in frames] + [total]
    animations, content = {}, []
    for row in range(rows):
        lines = [screen[row] if row < len(screen) else "" for _, screen in frames]
        first = 0
        for at in range(1, len(lines) + 1):
            if at < len(lines) and lines[at] == lines[first]:
                continue
            span, first = (first, at), at
            is_last = at == len(lines)
            extra = f' class="a{span[0]}-{span[1]}"' if span != (0, len(lines)) else ""
            extra += "" if is_last else ' opacity="0"'
            element = row_as_svg(lines[span[0]], row, extra)
            if element:
                content.append(element)
                animations[span] = (times[span[0]] / total * 100, times[span[1]] / total * 100)
    style = ""
    for (first, end), (from_, to) in animations.items():
        if (first, end) == (0, len(frames)):
            continue
        name = f"a{first}-{end}"
        hidden = "0%{opacity:0}" if first else ""
        after = f"{to:.2f}%{{opacity:0}}" if end < len(frames) else ""
        style += (
            f"@keyframes {name}{{{hidden}{from_:.2f}%{{opacity:1}}{after}}}"
            f".{name}{{animation:{name} {total:.1f}s step-end infinite}}"
        )
    style = f"@media (prefers-reduced-motion:no-preference){{{style}}}"
    return svg(title, columns, rows, style, "\n".join(content))


def save(name, picture):
    size = len(picture.encode())
    if size > BYTES_MAX:
        sys.exit(f"{name}: {size} bytes, more than {BYTES_MAX}")
    (HERE / name).write_text(picture)
    print(f"{name}: {size} bytes")


def record_demo(program):
    columns, rows, shown = 112, 24, "$ longshore demo /usr/share/doc"
    with tempfile.TemporaryDirectory() as folder:
        script = f"clear; echo {shlex.quote(shown)}; {program} demo /usr/share/doc"
        terminal = Terminal(script, columns, rows, folder)
        start, frames = time.monotonic(), []
        while time.monotonic() - start < 120:
            at, screen = time.monotonic() - start, terminal.screen()
            if not frames or frames[-1][1] != screen:
                frames.append((at, screen))
            if terminal.ended.exists():
                break
            time.sleep(1 / FRAMES_PER_S)
        frames.append((time.monotonic() - start, terminal.screen()))
        terminal.close()
    save("demo.svg", recording("longshore demo", columns, frames))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    return [listener.getsockname()[1] for listener in sockets]


LOAD = """
while sleep 0.2; do seq 60 | $L enqueue /tenants/acme/mail --lines; done >/dev/null 2>&1 &
while sleep 0.5; do seq 40 | $L enqueue /tenants/zeta/mail --lines; done >/dev/null 2>&1 &
while sleep 1; do seq 5 | $L enqueue /thumbnails --lines --max-attempts 2 --backoff fixed:2s
done >/dev/null 2>&1 &
seq 250 | $L enqueue /reports --lines --delay 1h >/dev/null 2>&1
$L work '/tenants/**' --concurrency 8 --name mail-1 -- cat >/dev/null 2>&1 &
$L work '/tenants/**' --concurrency 8 --name mail-2 -- cat >/dev/null 2>&1 &
$L work /thumbnails --name images-1 -- sh -c 'read n; sleep 0.3; test $n != 3' >/dev/null 2>&1 &
wait
"""


def picture_top(program):
    columns, rows = 120, 14
    resolver, publisher, second = free_ports(3)
    address = f"127.0.0.1:{resolver}"
    with tempfile.TemporaryDirectory() as folder:
        run = lambda *arguments: subprocess.Popen(
            [program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        Path(folder, "config.toml").write_text('[publisher]\nname = "berlin-1"\n')
        ports = ["--config", "config.toml", "--resolver-port", str(resolver)]
        ports += ["--publisher-port", str(publisher)]
        services = [run("up", "--data", "first", "--replicas", "1", *ports)]
        time.sleep(2)
        services.append(run(
            "publisher", "run", "--resolver", address, "--data", "second", "--name", "berlin-2",
            "--listen", f"127.0.0.1:{second}", "--default", "/",
        ))
        load = subprocess.Popen(
            ["sh", "-c", LOAD], cwd=folder, start_new_session=True,
            env={**os.environ, "L": program, "LONGSHORE_RESOLVERS": address},
        )
        try:
            time.sleep(12)
            command = f"{program} top --resolver {address}"
            terminal = Terminal(command, columns, rows, folder)
            time.sleep(8)
            screen = terminal.screen()
            terminal.close()
        finally:
            os.killpg(load.pid, 9)
            for service in services:
                service.terminate()
                service.wait()
    save("top.svg", still("longshore top", columns, screen))


def main():
    arguments = sys.argv[1:]
    which = [name for name in ("demo", "top") if name in arguments] or ["demo", "top"]
    programs = [name for name in arguments if name not in which]
    program = str(Path(programs[0] if programs else "target/dist/longshore").resolve())
    os.environ["HOME"] = tempfile.gettempdir()
    for name in ("CONFIG", "RESOLVERS", "DATA", "LOG"):
        os.environ.pop(f"LONGSHORE_{name}", None)
    if "demo" in which:
        record_demo(program)
    if "top" in which:
        picture_top(program)


main()
