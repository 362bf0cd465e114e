// The current view as an SVG, and the same as a PNG: the plots below each other and a legend, in the page's own colours.
"use strict";
(report => {
  const SPACE = "http://www.w3.org/2000/svg";
  const LEFT = 80, ROW = 20, COLUMN = 300, PNG_SCALE = 2;

  function element(name, values, text) {
    const made = document.createElementNS(SPACE, name);
    Object.entries(values).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // An SVG path through the points, begun anew after each gap.
  const path = points => points.map((point, index) => point && `${points[index - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`).join("");

  const pointsOf = (plot, x, y) => x.map((at, row) => {
    const point = y[row] === null ? [NaN] : [plot.valToPos(at, "x"), plot.valToPos(y[row], "y")];
    return point.every(Number.isFinite) ? point : "";
  });

  function drawAxes(group, plot, o, width, height, ink) {
    const [xAxis, yAxis] = plot.axes;
    const text = (values, words) => group.append(element("text", { fill: ink, ...values }, words));
    const rule = d => group.append(element("path", { d, stroke: "#80808055" }));
    xAxis._splits.forEach((value, index) => {
      rule(`M${plot.valToPos(value, "x")} 0V${height}`);
      text({ x: plot.valToPos(value, "x"), y: height + 18, "text-anchor": "middle" }, xAxis._values[index]);
    });
    yAxis._splits.forEach((value, index) => {
      rule(`M0 ${plot.valToPos(value, "y")}H${width}`);
      text({ x: -8, y: plot.valToPos(value, "y") + 4, "text-anchor": "end" }, yAxis._values[index]);
    });
    text({ x: width / 2, y: height + 38, "text-anchor": "middle" }, o.xTitle);
    text({ transform: `translate(-62 ${height / 2}) rotate(-90)`, "text-anchor": "middle" }, o.yTitle);
  }

  function drawLine(inside, frame, plot, line, o) {
    const draw = (d, values) => inside.append(element("path", { d, fill: "none", stroke: line.color, ...values }));
    if (line.low && line.low.some(value => value !== null)) {
      const [upper, lower] = [line.high, line.low].map(edge => pointsOf(plot, line.x, edge).filter(Boolean));
      draw(path(upper.concat(lower.reverse())) + "Z", { fill: line.color, "fill-opacity": 0.15, stroke: "none" });
    }
    if (o.raw && line.raw) draw(path(pointsOf(plot, line.raw.x, line.raw.y)), { "stroke-opacity": 0.25 });
    draw(path(pointsOf(plot, line.x, line.y)), { "stroke-width": 2, "stroke-dasharray": line.dash.join(" ") || "none" });
    report.markers(line, plot, o).dots.forEach(row => {
      const at = [plot.valToPos(line.x[row], "x"), plot.valToPos(line.y[row], "y")].map(value => value.toFixed(1));
      draw(line.marker, { fill: line.color, stroke: "none", transform: `translate(${at.join(" ")}) scale(0.6)` });
    });
    line.gaps.forEach(x => inside.append(element("text", { x: plot.valToPos(x, "x") - 5, y: 14, fill: line.color }, "\u00d7")));
  }

  // One plot as a group of elements, and the height that it takes.
  function drawPlot(place, index, ink) {
    const { plot, lines, o } = place.chart;
    const [width, height] = [plot.over.clientWidth, plot.over.clientHeight];
    const frame = element("g", {}), inside = element("g", { "clip-path": `url(#inside${index})` }), clip = element("clipPath", { id: `inside${index}` });
    clip.append(element("rect", { width, height }));
    frame.append(clip);
    drawAxes(frame, plot, o, width, height, ink);
    frame.append(inside);
    o.references.forEach(each => {
      inside.append(element("path", { d: `M0 ${plot.valToPos(each.value, "y")}H${width}`, stroke: "#7F7F7F", "stroke-width": 1.5, "stroke-dasharray": "3 4" }));
    });
    lines.forEach(line => drawLine(inside, frame, plot, line, o));
    report.ends(plot, lines, o).forEach(end => frame.append(element("text", { x: width + 8, y: end.at + 4, fill: end.line.color }, end.text)));
    return { frame, height: height + 60 };
  }

  report.svg = () => {
    const places = Array.from(document.querySelectorAll("#curves .plot"));
    const style = getComputedStyle(document.body);
    const width = Math.max(...places.map(place => place.clientWidth)) + 60;
    const svg = element("svg", { xmlns: SPACE, width, "font-family": "system-ui, sans-serif", "font-size": 13 });
    svg.append(element("title", {}, document.title), element("rect", { width: "100%", height: "100%", fill: style.backgroundColor }));
    let top = 12;
    places.forEach((place, index) => {
      const { frame, height } = drawPlot(place, index, style.color);
      frame.setAttribute("transform", `translate(${LEFT} ${top})`);
      svg.append(frame);
      top += height;
    });
    const columns = Math.max(1, Math.floor(width / COLUMN));
    const entries = report.legend().filter(entry => entry.shown);
    entries.forEach((entry, index) => {
      const [x, y] = [16 + COLUMN * (index % columns), top + ROW * Math.floor(index / columns)];
      const swatch = report.swatch(entry);
      [["x", x], ["y", y]].forEach(([key, value]) => swatch.setAttribute(key, value));
      svg.append(swatch, element("text", { x: x + 44, y: y + 12, fill: style.color }, entry.name));
    });
    svg.setAttribute("height", top + ROW * Math.ceil(entries.length / columns) + 8);
    svg.setAttribute("viewBox", `0 0 ${width} ${svg.getAttribute("height")}`);
    return new XMLSerializer().serializeToString(svg);
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
