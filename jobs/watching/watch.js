"use strict";
// Asks for the figures every second and puts in what has changed. The token stays in this tab.
(() => {
  const KEY = "longhaul-watch", EVERY_MS = 1000, DEADLINE_MS = 4000;
  const pictures = new Map();
  let token = sessionStorage.getItem(KEY) || "";
  let answeredAt = Date.now();

  if (location.hash.length > 1) {
    token = location.hash.slice(1);
    sessionStorage.setItem(KEY, token);
    history.replaceState(null, "", location.pathname);
  }

  const ask = (path) => fetch(path, {
    headers: { Authorization: `Bearer ${token}` },
    cache: "no-store",
    signal: AbortSignal.timeout(DEADLINE_MS),
  });

  const say = (text) => {
    const line = document.getElementById("connection");
    line.hidden = !text;
    line.textContent = text;
  };

  const askForToken = () => {
    const form = document.getElementById("ask");
    if (form === null) { location.reload(); return; }
    form.hidden = false;
    document.getElementById("token-form").onsubmit = (event) => {
      event.preventDefault();
      token = document.getElementById("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(token)) return;
      sessionStorage.setItem(KEY, token);
      form.hidden = true;
      turn();
    };
    document.getElementById("token").focus();
  };

  // A picture needs the token, which an img can't send.
  const showPicture = async (image) => {
    const key = image.dataset.chart;
    if (!pictures.has(key)) {
      const answer = await ask(`/charts/${key}.svg`);
      if (!answer.ok) return;
      pictures.set(key, URL.createObjectURL(await answer.blob()));
      if (pictures.size > 12) {
        const oldest = pictures.keys().next().value;
        URL.revokeObjectURL(pictures.get(oldest));
        pictures.delete(oldest);
      }
    }
    image.src = pictures.get(key);
  };

  // Sections that are the same stay: what is selected or scrolled in them stays as well.
  const replace = (parent, fresh) => {
    const before = new Map([...parent.children].map((one) => [one.id, one]));
    const after = [...fresh.children].map((one) => {
      const old = before.get(one.id);
      return old && old.sent === one.outerHTML ? old : Object.assign(one, { sent: one.outerHTML });
    });
    if (after.length === parent.children.length && after.every((one, at) => one === parent.children[at])) return;
    const focused = document.activeElement && document.activeElement.id;
    parent.replaceChildren(...after);
    if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  };

  const put = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    const live = document.getElementById("live");
    const head = live.querySelector("header");
    if (head === null) {
      live.replaceChildren(...fresh.children);
      for (const one of live.querySelector("main").children) one.sent = one.outerHTML;
    } else {
      head.replaceChildren(...fresh.querySelector("header").childNodes);
      replace(live.querySelector("main"), fresh.querySelector("main"));
    }
    document.title = `${live.querySelector("h1").textContent.trim()} – Longhaul watch`;
    for (const image of live.querySelectorAll("img[data-chart]:not([src])")) showPicture(image).catch(() => {});
  };

  const turn = async () => {
    let next = EVERY_MS;
    try {
      if (document.hidden) return;
      const answer = await ask("/live");
      if (answer.status === 401) {
        sessionStorage.removeItem(KEY);
        next = null;
        askForToken();
        return;
      }
      if (!answer.ok) throw new Error(answer.status);
      put(await answer.text());
      answeredAt = Date.now();
      say("");
    } catch (error) {
      const silent = Math.round((Date.now() - answeredAt) / 1000);
      say(`longhaul watch does not answer: what is shown was read ${silent} s ago or earlier.`);
    } finally {
      if (next !== null) setTimeout(turn, next);
    }
  };

  document.addEventListener("visibilitychange", () => { answeredAt = document.hidden ? answeredAt : Date.now(); });
  if (token) turn(); else askForToken();
})();
