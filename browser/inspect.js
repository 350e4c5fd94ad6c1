// inspect finds what a person could not read or use. It returns a sentence for each fault.
(() => {
  const faults = [];
  const visible = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getClientRects().length > 0;
  const say = (e) => '<' + e.tagName.toLowerCase() + (e.id ? '#' + e.id : '') + (e.getAttribute('class') ? '.' + e.getAttribute('class') : '') + '> "' +
    (e.textContent || '').trim().slice(0, 40) + '"';
  const named = (e) => {
    const by = (e.getAttribute('aria-labelledby') || '').split(/\s+/).filter(Boolean);
    return (e.getAttribute('aria-label') || '').trim() ||
      by.map((id) => document.getElementById(id)).filter(Boolean).map((n) => n.textContent).join(' ').trim();
  };

  // Structure
  if (!document.documentElement.lang) faults.push('html has no lang');
  if (!document.title.trim()) faults.push('the page has no title');
  for (const tag of ['main', 'h1']) {
    if (document.querySelectorAll(tag).length !== 1) faults.push(document.querySelectorAll(tag).length + ' ' + tag + ' elements, want 1');
  }
  let level = 0;
  for (const h of document.querySelectorAll('h1,h2,h3,h4,h5,h6')) {
    if (!visible(h)) continue;
    const l = Number(h.tagName[1]);
    if (l > level + 1) faults.push(say(h) + ' follows a heading of level ' + level);
    if (!h.textContent.trim()) faults.push(say(h) + ' is empty');
    level = l;
  }
  const ids = new Set();
  for (const e of document.querySelectorAll('[id]')) {
    if (ids.has(e.id)) faults.push('id ' + e.id + ' twice');
    ids.add(e.id);
  }
  for (const e of document.querySelectorAll('[aria-labelledby],[aria-describedby],[aria-controls]')) {
    for (const a of ['aria-labelledby', 'aria-describedby', 'aria-controls']) {
      for (const id of (e.getAttribute(a) || '').split(/\s+/).filter(Boolean)) {
        if (!document.getElementById(id)) faults.push(say(e) + ' ' + a + ' names ' + id + ', which is not there');
      }
    }
  }

  // Names
  for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) faults.push(say(e) + ' has no alt');
  for (const e of document.querySelectorAll('svg')) {
    if (e.closest('[aria-hidden="true"]') || e.parentElement.closest('svg')) continue;
    if (e.getAttribute('role') !== 'img' || !named(e)) faults.push(say(e) + ' is neither a named image nor hidden');
  }
  for (const e of document.querySelectorAll('input,select,textarea')) {
    if (!named(e) && ![...e.labels].some((l) => l.textContent.trim())) faults.push(say(e) + ' has no label');
  }
  for (const e of document.querySelectorAll('button,a[href],summary')) {
    if (!e.textContent.trim() && !named(e)) faults.push(say(e) + ' has no name');
  }
  for (const e of document.querySelectorAll('[role="meter"],meter,progress,[role="region"]')) if (!named(e)) faults.push(say(e) + ' has no name');
  for (const e of document.querySelectorAll('table')) {
    if (!e.querySelector('thead th[scope="col"], th[scope="col"]')) faults.push(say(e) + ' has no column headers with a scope');
    if (!visible(e)) continue;
    if (!e.caption && !named(e) && !e.closest('[role="region"][aria-label]')) faults.push(say(e) + ' has neither caption nor name');
  }

  // Contrast of every visible text against what is painted behind it
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (css) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    return layers.reverse().reduce((under, top) => over(top, under), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  let checked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walker.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || !visible(e) || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'TITLE', 'DESC'].includes(e.tagName.toUpperCase())) continue;
    const box = e.getBoundingClientRect();
    if (box.width <= 1 || box.bottom < 0) continue; // for readers of another kind
    const style = getComputedStyle(e), back = behind(e);
    const color = e.closest('svg') ? style.fill : style.color;
    const fore = over(rgba(color), back), a = light(fore), b = light(back);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    const want = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    checked++;
    if (ratio < want) faults.push(say(e) + ' has contrast ' + ratio.toFixed(2) + ', want ' + want + ' (' + color + ' on ' + back.map(Math.round) + ')');
    if (size < 11 && !e.closest('svg')) faults.push(say(e) + ' is set in ' + size + ' px');
  }
  if (checked < 10) faults.push('only ' + checked + ' texts were checked for contrast');

  // Fit
  const doc = document.documentElement;
  if (doc.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll('body *')].filter((e) => visible(e) && e.getBoundingClientRect().right > innerWidth + 1);
    faults.push('the page is ' + doc.scrollWidth + ' px wide in a window of ' + innerWidth + ': ' + wide.slice(0, 3).map(say).join(', '));
  }
  for (const e of document.querySelectorAll('button,select,input:not([type="hidden"]),summary')) {
    if (!visible(e)) continue;
    const box = e.getBoundingClientRect();
    if (box.height < 18 || box.width < 18) faults.push(say(e) + ' is too small to hit: ' + Math.round(box.width) + ' by ' + Math.round(box.height));
  }
  return [...new Set(faults)];
})()
