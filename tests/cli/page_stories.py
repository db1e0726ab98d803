#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `dlxctl serve --page` in a headless Chromium.

usage: page_stories.py FOLDER [SCREENSHOTS]

FOLDER is for sockets and logs. With SCREENSHOTS, pictures of the page at three widths, light and
dark, are written into that folder, for people to look at. $BUILD is the build folder.
"""

import os
import pathlib
import pwd
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from browser import Browser  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()
MARKUP = "<img src=x>"  # as long as the name of a process may be, or shorter
FLOWING = "document.getElementById('state')?.className === 'state live'"
ROWS = "[...document.querySelectorAll('#topics tbody tr')]"


class Scene:
    """A daemon, publishers, a subscriber that takes nothing, and `dlxctl serve --page`."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        self.env = {**os.environ, "DLX_SOCKET": str(folder / "stories"), "DLX_AUTOSPAWN": "no"}

    def start(self, name, *command):
        with open(self.folder / f"{name}.said", "w") as said:
            p = subprocess.Popen(
                [str(c) for c in command],
                env=self.env,
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
        self.processes.append(p)
        return p

    def eventually(self, find):
        """Waits until the function returns something, and returns that."""
        end = time.monotonic() + 30
        while not (found := find()):
            assert time.monotonic() < end, "not within 30 s"
            time.sleep(0.05)  # lint-allow: sleep: before the next look
        return found

    def says(self, name, pattern):
        """Waits until the process has said that, and returns the match."""
        said = self.folder / f"{name}.said"
        return self.eventually(lambda: re.search(pattern, said.read_text(), re.M))

    def start_daemon(self, *options):
        socket = self.env["DLX_SOCKET"]
        self.daemon = self.start(
            "daemon", BUILD / "dlpackd", "--foreground", "--socket", socket, *options
        )
        ls = [str(BUILD / "dlxctl"), "ls", "--wait-daemon"]
        subprocess.run(ls, env=self.env, check=True, capture_output=True, timeout=60)

    def has_publisher(self, topic):
        ls = [str(BUILD / "dlxctl"), "ls", topic]
        return subprocess.run(ls, env=self.env, capture_output=True).returncode == 0

    def publish(self, topic, rate, *options):
        return self.start(
            topic.replace("/", "-"),
            *[BUILD / "dlxctl", "pub", topic, "tests/data/npy/f4.npy"],
            *["--loop", 0, "--rate", rate, *options],
        )

    def end(self):
        for p in self.processes:
            p.send_signal(signal.SIGCONT)
            p.kill()
            p.wait()


def fits(b):
    """The page is not wider than the window."""
    wide = b.run("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"the page is {wide} pixels too wide at {b.run('innerWidth')}"


def column(b, title):
    """The values of a column of topics, by topic."""
    heads = b.run("[...document.querySelectorAll('#topics thead th')].map(e => e.textContent)")
    cells = b.run(ROWS + ".map(r => [...r.cells].map(e => e.textContent))")
    return {row[0]: row[heads.index(title)] for row in cells}


def it_loads_and_updates(b, scene, url):
    b.size(1400)
    b.open(url)
    b.until(FLOWING)
    b.until(ROWS + ".length === 4")
    assert "#token" not in b.run("location.href"), "the token stays in the address"
    b.until(ROWS + ".every(r => r.querySelector('svg polyline'))")
    scene.eventually(lambda: all(r != "0/s" for r in column(b, "Rate").values()))
    before = b.run("document.querySelector('#figures div:last-child dd').textContent")
    b.until(f"document.querySelector('#figures div:last-child dd').textContent !== '{before}'")
    late = scene.publish("late", 20)
    b.until(ROWS + ".some(r => r.cells[0].textContent === 'late')")
    late.kill()
    b.until("!" + ROWS + ".some(r => r.cells[0].textContent === 'late')")
    b.run("window.before = 1")
    b.call("Page.reload")
    b.until("!window.before && " + FLOWING)  # the token is kept for this tab


def it_sorts_filters_and_opens_a_topic(b):
    b.run("document.querySelector('#topics th button').click()")
    sorted_by = "document.querySelector('#topics th').getAttribute('aria-sort')"
    names = ROWS + ".map(r => r.cells[0].textContent).join()"
    b.until(f"{sorted_by} === 'ascending' && {names} === 'cam/front,cam/rear,image,lidar'")
    b.run("document.querySelector('#topics th button').click()")
    b.until(f"{sorted_by} === 'descending' && {names} === 'lidar,image,cam/rear,cam/front'")
    b.run("document.querySelector('#topics th button').click()")
    b.run("const f = document.getElementById('filter'); f.value = 'cam/*';"
          "f.dispatchEvent(new Event('input'))")  # fmt: skip
    b.until(ROWS + ".length === 2")
    assert b.run("location.search") == "?sort=TOPIC&filter=cam%2F*"
    b.run(ROWS + "[0].querySelector('button').click()")
    b.until("document.querySelectorAll('#publishers tbody tr').length === 1")
    link = b.run("document.querySelector('#publishers tbody tr').innerText")
    assert "dlxctl" in link, link
    # The subscriber is stopped: it is behind, and the page says so.
    heads = b.run("[...document.querySelectorAll('#publishers th')].map(e => e.textContent)")
    behind = f"document.querySelector('#publishers tbody tr').cells[{heads.index('Behind')}]"
    b.until(f"{behind}.textContent !== '0'")
    assert b.run("document.activeElement.id") == "detail"
    key = {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}
    b.call("Input.dispatchKeyEvent", type="keyDown", **key)
    b.until("document.getElementById('detail').hidden")
    assert b.run("document.activeElement.textContent") == "cam/front", "focus goes back"


def markup_is_text(b, url):
    b.until(f"document.getElementById('unserved').innerText.includes('{MARKUP}')")
    base = url.split("#")[0]
    hostile = "%3Cimg%20src=x%20onerror=alert(1)%3E"
    b.open(f"{base}?topic={hostile}&filter={hostile}&sort={hostile}")
    b.until(FLOWING)
    title = b.run("document.getElementById('detail-title').textContent")
    assert title == "<img src=x onerror=alert(1)>", title
    b.until("document.getElementById('topics').innerText.includes('No topic matches')")
    assert b.run("document.images.length") == 1, "the place for a picture"
    # Not even a script that came in would run.
    b.run("document.body.insertAdjacentHTML('beforeend',"
          "'<img id=bad src=x onerror=\"window.broken=1\">');"
          "const s = document.createElement('script'); s.textContent = 'window.broken=1';"
          "document.body.append(s)")  # fmt: skip
    assert b.run("window.broken") is None
    refused = [s for s in b.said if "Content Security Policy" in s]
    assert refused, "the policy refuses inline scripts"
    b.said = [s for s in b.said if "Content Security Policy" not in s]


def it_is_readable_at_any_width(b, url):
    b.open(url.split("#")[0] + "?topic=cam/front")
    b.until("document.querySelectorAll('#publishers tbody tr').length === 1")
    for width in (360, 600, 768, 1000, 1400):
        b.size(width, mobile=width < 700)
        fits(b)
    b.size(360, mobile=True)
    small = b.run(
        "[...document.querySelectorAll('main *')].filter(e => e.childElementCount === 0 && "
        "e.textContent && parseFloat(getComputedStyle(e).fontSize) < 12).length"
    )
    assert small == 0, f"{small} texts are smaller than 12 pixels"
    roles = b.run("document.querySelectorAll('#topics [role=row] [role=cell]').length")
    assert roles > 0, "tables stay tables for screen readers"


# The contrast of text with what is behind it, as WCAG 2 has it.
CONTRAST = """(() => {
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const mix = (colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const c of colours) { context.fillStyle = c; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || e.checkVisibility && !e.checkVisibility()) continue;
    const behind = [];
    for (let p = e; p; p = p.parentElement) behind.unshift(getComputedStyle(p).backgroundColor);
    const back = mix(behind), front = mix([...behind, getComputedStyle(e).color]);
    const [a, b] = [light(back), light(front)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push(`${e.tagName} ${e.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""


def it_has_contrast(b):
    backgrounds = set()
    for scheme in ("light", "dark"):
        b.scheme(scheme)
        backgrounds.add(b.run("getComputedStyle(document.body).backgroundColor"))
        bad = b.run(CONTRAST)
        assert not bad, f"{scheme}: {bad}"
    assert len(backgrounds) == 2, "dark mode looks like light mode"


def it_survives_a_restart(b, scene):
    scene.daemon.kill()
    scene.daemon.wait()
    b.until("document.getElementById('state').textContent.startsWith('dlpackd is away: ')")
    assert b.run("document.getElementById('main').classList.contains('stale')")
    assert b.run(ROWS + ".length") == 4, "the last figures stay"
    b.run("window.same = 1")
    scene.start_daemon()
    b.until(FLOWING)
    b.until(ROWS + ".length === 4 && " + ROWS + ".every(r => !r.innerText.includes('\\t0/s'))")
    assert b.run("window.same") == 1, "the page was not loaded again"


def it_survives_an_end_of_serve(b, scene, serve, address, token_file):
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(30) == 0
    b.until("document.getElementById('state').textContent.startsWith('dlxctl serve does not')")
    again = scene.start(
        "again",
        *[BUILD / "dlxctl", "serve", "--page", "--interval", "100ms", "--listen", address],
        *["--token-file", token_file],
    )
    b.until(FLOWING)
    # With another token the page asks for it.
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 0
    args = ["--page", "--interval", "100ms", "--listen", address]
    scene.start("other", BUILD / "dlxctl", "serve", *args)
    token = scene.says("other", r"^page: \S+#token=(\S+)$")[1]
    b.until("!document.getElementById('sign-in').hidden")
    assert b.run("document.getElementById('main').hidden"), "figures without a token"
    assert b.run("document.activeElement.id") == "token"
    b.run(f"document.getElementById('token').value = '{token}';"
          "document.querySelector('#sign-in button').click()")  # fmt: skip
    b.until(FLOWING)
    assert b.run("document.getElementById('sign-in').hidden")


def pages_do_not_disturb_each_other(b, url):
    """The answers to two filters at once, many times."""
    script = """(async () => {
      const get = async (filter) => {
        const headers = {Authorization: 'Bearer ' + sessionStorage.getItem('dlpackd-token')};
        const answer = await fetch('state?filter=' + filter, {headers});
        const topics = (await answer.json()).topics.map((t) => t.topic);
        return topics.every((t) => t.startsWith(filter)) && topics.length > 0;
      };
      const all = [];
      for (let i = 0; i < 100; i++) all.push(get('cam'), get('lidar'));
      return (await Promise.all(all)).every((right) => right);
    })()"""
    assert b.run(script)


def it_shows_pictures(b, scene):
    """An image that changes, and a subscriber that is not there between two pictures."""
    b.open(b.run("location.origin") + "/?topic=image")
    b.until("document.getElementById('image').naturalWidth === 64")
    assert "uint8 (48, 64, 3)" in b.run("document.getElementById('caption').textContent")
    first = b.run("document.getElementById('image').src")
    b.until(f"document.getElementById('image').src !== '{first}'")
    blob = b.run(f"fetch('{first}').then(() => 'there', () => 'gone')")
    assert blob == "gone", "pictures stay in memory"
    colour = """(() => {
      const context = document.createElement('canvas').getContext('2d');
      const image = document.getElementById('image');
      if (!image.complete) return null; // the next one is being decoded
      context.drawImage(image, 0, 0);
      return [...context.getImageData(10, 10, 1, 1).data].join();
    })()"""
    colours = set()
    scene.eventually(lambda: colours.add(b.run(colour)) or len(colours - {None}) == 2)
    assert colours - {None} == {"64,64,64,255", "192,192,192,255"}, colours
    state = b.run("document.querySelector('#publishers').innerText")
    assert "No subscriber" in state or "being looked for" in state, state
    b.run("document.getElementById('close').click()")
    assert b.run("document.getElementById('picture').hidden && !document.images[0].src")
    b.said = [s for s in b.said if "blob:" not in s]  # the one that is gone


BROKEN = """
[socket pods]
path = {folder}/pods
quota = pods
[quota pods]
bytes = 1Mi
[rule pods]
sockets = pods
users = *
topics = big/**
allow = publish
[rule all]
users = *
topics = **
allow = publish, subscribe, observe, block
"""


class Broken(Scene):
    """Three pipelines that are broken on purpose: a subscriber that is stopped, subscriptions that
    are refused, and a quota that is full."""

    def begin(self):
        conf = self.folder / "conf"
        conf.write_text(BROKEN.format(folder=self.folder))
        self.start_daemon("--config", conf)
        ctl = BUILD / "dlxctl"
        pods = [ctl, "--socket", self.folder / "pods"]
        self.publish("stuck/frames", 50, "--block")
        self.publish("cam/front", 50)
        self.stuck = self.start("stuck", ctl, "echo", "--reliable", "stuck/frames")
        self.says("stuck", "float32")
        self.stuck.send_signal(signal.SIGSTOP)
        self.start("secret", *pods, "echo", "secret/plans")
        self.says("secret", "may not subscribe to secret/plans")
        self.start("reliable", ctl, "echo", "--reliable", "cam/front")
        self.says("reliable", "asks for a reliable link")
        (self.folder / "big").write_bytes(bytes(900 << 10))
        big = [self.folder / "big", "--dtype", "uint8", "--shape", 900 << 10]
        self.start("map", *pods, "pub", "big/map", *big, "--hold")
        self.eventually(lambda: self.has_publisher("big/map"))
        self.start("more", *pods, "pub", "big/more", *big)
        self.says("more", "no memory for 900.0 KiB")
        serve = ["serve", "--page", "--interval", "100ms", "--listen", "127.0.0.1:0"]
        self.start("serve", ctl, *serve)
        return self.says("serve", r"^page: (\S+)$")[1]


def rows(b, table):
    """The rows of a table: the values by the titles of columns."""
    heads = f"[...document.querySelectorAll('#{table} thead th')].map(e => e.textContent)"
    cells = f"[...document.querySelectorAll('#{table} tbody tr')]"
    cells += ".map(r => [...r.cells].map(e => e.textContent))"
    return [dict(zip(b.run(heads), row, strict=True)) for row in b.run(cells)]


def it_shows_what_is_broken(b, scene, url):
    b.scheme("light")
    b.size(1400)
    b.open(url)
    b.until(FLOWING)
    b.until("document.querySelectorAll('#holds tbody tr').length === 1")
    b.until("document.querySelectorAll('#refusals tbody tr').length === 3")
    # Who makes whom wait is there without a click.
    assert column(b, "State")["stuck/frames"] == "BLOCKED"
    (hold,) = rows(b, "holds")
    said = {t: hold[t] for t in ("State", "Process", "Topic", "Behind", "Held")}
    assert said == {
        "State": "BLOCKS",
        "Process": str(scene.stuck.pid),
        "Topic": "stuck/frames",
        "Behind": "16",
        "Held": "0 of 16",
    }, hold
    # What was refused: on which topic, and why.
    refused = {r["Topic"]: r for r in rows(b, "refusals")}
    assert set(refused) == {"secret/plans", "cam/front", "big/more"}, refused
    for topic, request, why in (
        ("secret/plans", "subscribe", "no rule of dlpackd.conf allows it"),
        ("cam/front", "subscribe", "drops its oldest messages: make it a publisher that blocks"),
        ("big/more", "memory", "may have 1.0 MiB (quota bytes of class pods)"),
    ):
        assert refused[topic]["Request"] == request, refused[topic]
        assert why in refused[topic]["Why"], refused[topic]
    # The quota that is nearly used up opens the list, is the first, and says which user it is of.
    assert b.run("document.getElementById('quotas-all').open")
    user = pwd.getpwuid(os.geteuid()).pw_name
    fullest = b.run("document.getElementById('quotas-n').textContent")
    assert re.fullmatch(rf"the fullest: bytes of {user} by pods, 9\d %", fullest), fullest
    first, *others = rows(b, "quotas")
    assert (first["User"], first["Quota"]) == (f"{user} by pods", "bytes"), first
    assert all(q["Used"] != "0" for q in others), "quotas that are not used"
    # The topic: how long its publisher has waited in all, however often it tried.
    stuck = ROWS + ".find(r => r.cells[0].textContent === 'stuck/frames')"
    b.run(stuck + ".querySelector('button').click()")
    b.until("/waits for room, [0-9.]+ m?s in all/.test("
            "document.getElementById('publishers').innerText)")  # fmt: skip
    link = b.run("document.querySelector('#publishers tbody tr').innerText")
    assert "BLOCKS" in link, link
    for width in (360, 768, 1400):
        b.size(width, mobile=width < 700)
        fits(b)
    it_has_contrast(b)
    if len(sys.argv) > 2:
        take_screenshots(b, pathlib.Path(sys.argv[2]), "broken")
    # The stuck program goes on, and all of that is gone.
    scene.stuck.send_signal(signal.SIGCONT)
    b.until("document.querySelectorAll('#holds tbody tr').length === 0")
    assert column(b, "State")["stuck/frames"] == ""


def take_screenshots(b, folder, name):
    for width in (1400, 768, 360):
        b.size(width, mobile=width < 700)
        for scheme in ("light", "dark"):
            b.scheme(scheme)
            b.screenshot(folder / f"{name}-{width}-{scheme}.png")


def main():
    scene = Scene(pathlib.Path(sys.argv[1]))
    try:
        scene.start_daemon()
        for topic, rate in (("cam/front", 50), ("cam/rear", 30), ("lidar", 10)):
            scene.publish(topic, rate)
        for i, colour in enumerate((64, 192)):
            (scene.folder / f"image{i}").write_bytes(bytes([colour]) * 48 * 64 * 3)
        scene.start(
            "image",
            *[BUILD / "dlxctl", "pub", "image", scene.folder / "image0", scene.folder / "image1"],
            *["--dtype", "uint8", "--shape", "48,64,3", "--loop", 0, "--rate", 5],
        )
        echo = scene.start("echo", BUILD / "dlxctl", "echo", "cam/front")
        scene.says("echo", "float32")
        echo.send_signal(signal.SIGSTOP)
        (scene.folder / MARKUP).symlink_to(BUILD / "examples/hello_subscribe")
        scene.start("markup", scene.folder / MARKUP)
        token_file = scene.folder / "stories-token"
        serve = scene.start(
            "serve",
            *[BUILD / "dlxctl", "serve", "--page", "--interval", "100ms"],
            *["--listen", "127.0.0.1:0", "--token-file", token_file],
            *["--pictures", "image", "--picture-rate", 20],
        )
        base = scene.says("serve", r"^page: (\S+)#")[1]
        url = f"{base}#token={token_file.read_text().strip()}"
        with Browser() as b:
            it_loads_and_updates(b, scene, url)
            it_sorts_filters_and_opens_a_topic(b)
            markup_is_text(b, url)
            it_shows_pictures(b, scene)
            it_is_readable_at_any_width(b, url)
            it_has_contrast(b)
            pages_do_not_disturb_each_other(b, url)
            if len(sys.argv) > 2:
                take_screenshots(b, pathlib.Path(sys.argv[2]), "page")
            assert not b.said, b.said
            it_survives_a_restart(b, scene)
            address = base.removeprefix("http://").rstrip("/")
            it_survives_an_end_of_serve(b, scene, serve, address, token_file)
            b.said = [s for s in b.said if not s.startswith("network: ")]
            assert not b.said, b.said
    finally:
        scene.end()
    scene = Broken(pathlib.Path(sys.argv[1]))
    try:
        url = scene.begin()
        with Browser() as b:
            it_shows_what_is_broken(b, scene, url)
            assert not b.said, b.said
    finally:
        scene.end()
    print("page_stories: the page loads, updates, survives restarts, and shows what is broken")


if __name__ == "__main__":
    main()
