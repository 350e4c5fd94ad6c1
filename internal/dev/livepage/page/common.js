// Reads data.json once a second, for the script of a page to show. Every text from there may be an attacker's choice (a
// tenant's name, a path), so it only ever becomes the text of a node.
'use strict';

const root = document.documentElement;
const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
const clock = (ms) => new Date(ms).toLocaleTimeString('en-GB');

function text(node, value) {
  value = String(value);
  if (node.textContent !== value) node.textContent = value;
  return node;
}
function el(tag, className, value, parent) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (value !== undefined) node.textContent = value;
  if (parent) parent.append(node);
  return node;
}
const list = (x) => Array.isArray(x) ? x : [];
const amount = (n) => Number.isFinite(n) ? whole.format(n) : '–';
function number(node, n, hot) {
  text(node, amount(n));
  node.classList.toggle('zero', n === 0);
  node.classList.toggle('hot', Boolean(hot) && n > 0);
}
function duration(ms) {
  if (ms < 1000) return Math.max(0, ms) + ' ms';
  const s = Math.ceil(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (s < 10) return (Math.ceil(ms / 100) / 10).toFixed(1) + ' s';
  if (m < 1) return s + ' s';
  if (h < 1) return m + ' m ' + (s % 60) + ' s';
  if (d < 1) return h + ' h ' + (m % 60) + ' m';
  return d + ' d ' + (h % 24) + ' h';
}

// sync makes the children of parent show items in order, keeping the nodes of items that stay.
const kept = new WeakMap();
function sync(parent, items, key, make) {
  const had = kept.get(parent) || new Map(), rows = new Map();
  kept.set(parent, rows);
  let next = parent.firstElementChild;
  for (const item of items) {
    const k = key(item), row = had.get(k) || make(item);
    had.delete(k);
    rows.set(k, row);
    row.update(item);
    if (row.node === next) next = next.nextElementSibling;
    else parent.insertBefore(row.node, next);
  }
  for (const row of had.values()) row.node.remove();
}
const keyOf = (...parts) => JSON.stringify(parts);

// Polling

let data = null, failures = 0, timer = 0, asking = null; // data is the latest data.json

function link(state, message) {
  $('link').dataset.state = state;
  text($('link-text'), message);
}
async function ask() {
  asking = new AbortController();
  const late = setTimeout(() => asking.abort(), 5000);
  try {
    const answer = await fetch('data.json', { cache: 'no-store', signal: asking.signal });
    if (!answer.ok) return 'The data was refused with status ' + answer.status;
    const got = await answer.json();
    if (got.version !== 2) return 'Another version of Sluice runs now: reload this page';
    data = got;
    return '';
  } catch {
    return 'Connection lost; trying again';
  } finally {
    clearTimeout(late);
    asking = null;
  }
}
async function poll(show) {
  clearTimeout(timer);
  if (document.hidden || asking) return;
  const trouble = await ask();
  failures = trouble ? failures + 1 : 0;
  link(trouble ? 'lost' : 'live', trouble || 'Live');
  timer = setTimeout(() => poll(show), Math.min(15000, 1000 * 2 ** Math.min(failures, 4)));
  if (!trouble) show(); // last, and not caught: a fault in showing is one to hear of
}

// start calls show each time that data is new, as soon as the page is there.
function start(show) {
  document.addEventListener('DOMContentLoaded', () => {
    document.addEventListener('visibilitychange', () => poll(show));
    poll(show);
  });
}
