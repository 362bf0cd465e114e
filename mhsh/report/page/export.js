// The current view as an SVG, and the same as a PNG: the plots below each other and a legend, in the page's own colours.
"use strict";
(report => {
  const SPACE = "http://www.w3.org/2000/svg";
  const LEFT = 80, ROW = 20, COLUMN = 300, PNG_SCALE = 2;

  const set = (element, values) => {
    Object.entries(values).forEach(([key, value]) => element.setAttribute(key, value));
    return element;
  };
  const element = (name, values, text = "") => set(Object.assign(document.createElementNS(SPACE, name), { textContent: text }), values);
  const drawn = ({ text, d, x = 0, y = 0, scale = 1, size, fill, halo, stroke, width = 1, opacity = 1, dash = [] }) => element(text ? "text" : "path", {
    ...(text ? { "font-size": size, "font-weight": 600, "paint-order": "stroke" } : { d }), transform: `translate(${x} ${y}) scale(${scale})`,
    fill: fill || "none", stroke: halo || stroke || "none", "stroke-width": halo ? 3 : width, "stroke-dasharray": dash.join(" ") || "none", opacity,
  }, text);
  // A piece of a line for legends, as parts.html draws it.
  report.swatch = line => {
    const svg = element("svg", { class: "swatch", width: 36, height: 14, viewBox: "-18 -7 36 14", "aria-hidden": "true" });
    svg.append(drawn({ d: "M-18 0H18", stroke: line.color, width: 2, dash: line.dash }), drawn({ d: line.marker || "M0 0", fill: line.color }));
    return svg;
  };

  function drawPlot(place, index, ink) {
    const { plot, lines, o } = place.chart, [width, height] = [plot.over.clientWidth, plot.over.clientHeight];
    const [frame, clip] = [element("g", {}), element("clipPath", { id: `inside${index}` })];
    const inside = element("g", { "clip-path": `url(#inside${index})` });
    clip.append(element("rect", { x: -5, width: width + 10, height }));
    const text = (values, words) => frame.append(element("text", { fill: ink, "text-anchor": "middle", ...values }, words));
    const [xAxis, yAxis] = plot.axes, { clipped, free } = report.shapes(plot, lines, o);
    xAxis._splits.map(value => plot.valToPos(value, "x")).forEach((x, split) => {
      frame.append(drawn({ d: `M${x} 0V${height}`, stroke: "#80808055" }));
      text({ x, y: height + 18 }, xAxis._values[split]);
    });
    yAxis._splits.map(value => plot.valToPos(value, "y")).forEach((y, split) => {
      frame.append(drawn({ d: `M0 ${y}H${width}`, stroke: "#80808055" }));
      text({ x: -8, y: y + 4, "text-anchor": "end" }, yAxis._values[split]);
    });
    text({ x: width / 2, y: height + 38 }, o.xTitle);
    text({ transform: `translate(-62 ${height / 2}) rotate(-90)` }, o.yTitle);
    inside.append(...clipped.map(drawn));
    frame.append(clip, inside, ...free.map(drawn));
    return frame;
  }

  report.svg = () => {
    const places = Array.from(document.querySelectorAll("#curves .plot")), style = getComputedStyle(document.body);
    const width = Math.max(...places.map(place => place.clientWidth)) + 60, columns = Math.max(1, Math.floor(width / COLUMN));
    const svg = element("svg", { xmlns: SPACE, width, "font-family": "system-ui, sans-serif", "font-size": 13 });
    svg.append(element("title", {}, document.title), element("rect", { width: "100%", height: "100%", fill: style.backgroundColor }));
    let top = 12;
    places.forEach((place, index) => {
      svg.append(set(drawPlot(place, index, style.color), { transform: `translate(${LEFT} ${top})` }));
      top += place.chart.plot.over.clientHeight + 60;
    });
    const entries = report.legend().filter(entry => entry.shown);
    entries.forEach((entry, index) => {
      const [x, y] = [16 + COLUMN * (index % columns), top + ROW * Math.floor(index / columns)];
      svg.append(set(report.swatch(entry), { x, y }), element("text", { x: x + 44, y: y + 12, fill: style.color }, entry.name));
    });
    const height = top + ROW * Math.ceil(entries.length / columns) + 8;
    return new XMLSerializer().serializeToString(set(svg, { height, viewBox: `0 0 ${width} ${height}` }));
  };

  report.png = async () => {
    const picture = new Image();
    picture.src = URL.createObjectURL(new Blob([report.svg()], { type: "image/svg+xml" }));
    await picture.decode();
    URL.revokeObjectURL(picture.src);
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [PNG_SCALE * picture.width, PNG_SCALE * picture.height];
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return new Promise(done => { canvas.toBlob(done, "image/png"); });
  };

  report.save = async (kind, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(kind === "png" ? await report.png() : new Blob([report.svg()], { type: "image/svg+xml" }));
    link.download = name.replace(/[^\w-]/g, "_") + "." + kind;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
})(window.report);
