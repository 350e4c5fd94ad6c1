'use strict';

// Shows what a pacer does.

const parts = ['granted'];
const compact = (n) => !Number.isFinite(n) ? '–' : n >= 100000 ? short.format(n) : n >= 10 ? whole.format(Math.round(n)) : String(Math.round(n * 100) / 100);
const sum = (values) => values.reduce((all, n) => all + n, 0);
const waited = (w, ms) => w.count ? duration(ms) : '–';
let plot = null;

// period is the length of a window in words.
const period = (ms) => ms === 1000 ? 'second' : ms === 60000 ? 'minute' : ms === 3600000 ? 'hour' : ms === 86400000 ? 'day' : duration(ms);

function drawPlot(d) {
  const n = d.granted.length, most = Math.max(...d.limits), { top, peak, highest } = plot({ granted: d.granted }, (i) => d.failed[i] > 0, most);
  let line = '';
  d.limits.forEach((limit, i) => {
    if (limit > 0) line += (line && d.limits[i - 1] > 0 ? 'V' + (100 - 100 * limit / top) : 'M' + 600 * i / n + ' ' + (100 - 100 * limit / top)) + 'H' + 600 * (i + 1) / n;
  });
  $('line').setAttribute('d', line);
  text($('x-from'), clock(d.from_ms));
  text($('x-to'), 'now');
  text($('line-note'), d.limit.period_ms > 1000 ? 'the limit on average; a window may begin with more than that' : 'the limit');
  $('away-key').hidden = !sum(d.failed);
  text($('plot-desc'), highest === 0 ? 'Nothing was granted in the last minute.' : 'In the last minute ' + amount(sum(d.granted)) +
    ' units were granted. Most in one second: ' + amount(highest) + ', at ' + clock(d.from_ms + peak * d.step_ms) + '. The limit is ' + compact(d.limit.per_second) + ' per second.');
  if ($('as-table').open) table(d);
}
function readout(i) {
  const d = data;
  return i < 0 ? clock(d.from_ms + d.step_ms * d.granted.length / 2) : clock(d.from_ms + i * d.step_ms) + ': ' + amount(d.granted[i]) +
    ' granted, ' + amount(d.queued[i]) + ' waiting' + (d.failed[i] ? '; ' + amount(d.failed[i]) + ' calls to the store failed' : '');
}
function table(d) {
  sync($('cells'), d.granted.map((_, i) => i).reverse(), (i) => d.from_ms + i * d.step_ms, (i) => {
    const node = el('tr');
    el('th', '', clock(d.from_ms + i * d.step_ms), node).scope = 'row';
    const [granted, limit, queued, failed] = [0, 0, 0, 0].map(() => el('td', 'num', '', node));
    return { node, update(i) {
      number(granted, data.granted[i]);
      text(limit, data.limits[i] ? compact(data.limits[i]) : '–');
      number(queued, data.queued[i]);
      number(failed, data.failed[i], true);
    } };
  });
}

function tiles(d) {
  number($('waiting'), d.waiting);
  text($('sub-waiting'), d.waiting === 0 ? 'nobody' : amount(d.waiting_units) + ' units, ' + (d.waiting_keys === 1 ? '1 key' : amount(d.waiting_keys) + ' keys'));
  const recent = d.granted.slice(-10), rate = sum(recent) / recent.length;
  text($('rate'), compact(rate));
  text($('sub-rate'), 'limit ' + compact(d.limit.per_second) + ', in the last 10 s');
  text($('p50'), waited(d.waits, d.waits.p50_ms));
  text($('p99'), waited(d.waits, d.waits.p99_ms));
  const failed = sum(d.failed);
  number($('errors'), failed, true);
  text($('sub-errors'), d.about.store ? 'of ' + amount(d.totals.store_calls) + ' calls since the start: ' + amount(d.totals.store_errors) : 'no store');
  $('away').hidden = !sum(d.failed.slice(-5));
  text($('away-calls'), amount(failed));
}

function keyRow(k) {
  const node = el('tr'), name = el('th', '', undefined, node);
  name.scope = 'row';
  const many = k.keys !== 1;
  el(many || k.key === '' ? 'span' : 'bdi', many || k.key === '' ? 'special' : '', many ? 'All others' : k.key || 'No key', name);
  if (!many) node.dataset.key = k.key;
  const cells = ['waiting', 'granted', 'rate', 'p50', 'p99'].map((c) => {
    const td = el('td', 'num', '', node);
    td.dataset.column = c;
    return td;
  });
  return { node, update(k) {
    number(cells[0], k.waiting);
    number(cells[1], k.granted);
    text(cells[2], compact(k.per_second));
    text(cells[3], waited(k.waits, k.waits.p50_ms));
    text(cells[4], waited(k.waits, k.waits.p99_ms));
  } };
}
function keys(d) {
  const rows = d.others ? [...d.keys, d.others] : d.keys;
  sync($('key-rows'), rows, (k) => keyOf(k.keys, k.key), keyRow);
  $('keys').hidden = rows.length === 0;
  $('keys-empty').hidden = rows.length > 0;
}

const totals = {
  granted: 'Units granted', at_once: 'Granted at once', returned: 'Units given back', lost: 'Given back too late',
  refused: 'Refused as too late', expired: 'Expired', canceled: 'Canceled', store_calls: 'Calls to the store', store_errors: 'Failed calls',
};
function since(d) {
  sync($('totals'), Object.keys(totals), (name) => name, (name) => {
    const node = el('div');
    el('dt', '', totals[name], node);
    const value = el('dd', '', '', node);
    node.dataset.count = name;
    return { node, update: (name) => number(value, data.totals[name]) };
  });
}

function show() {
  if (!data) return;
  text($('command'), data.about.command || '–');
  text($('limit'), amount(data.limit.units) + ' per ' + period(data.limit.period_ms) + (data.limit.learned ? ', learned: ' + amount(data.limit.learned) : ''));
  text($('window'), amount(data.limit.used) + ' of ' + amount(data.limit.window) + ' units used');
  text($('store'), data.about.store || 'not shared');
  tiles(data);
  drawPlot(data);
  keys(data);
  since(data);
  root.dataset.now = data.now_ms; // also what a test waits for
}

start(show, () => {
  plot = chart(parts, readout);
  $('as-table').addEventListener('toggle', show);
});
