//! Line charts and tables of counts as SVG.

use std::fmt::Write;

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points; values that are not finite leave a gap.
    pub points: Vec<(f64, f64)>,
}

/// A chart with a title, the meaning of its x axis and its lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Name of the x axis.
    pub x: String,
    /// Lines.
    pub series: Vec<Series>,
    /// Whether the y axis is logarithmic; values that are not above 0 leave a gap then.
    pub log: bool,
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A text between tags or in an attribute.
pub fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// About five round positions between two values.
fn ticks(lo: f64, hi: f64) -> Vec<f64> {
    let raw = (hi - lo) / 5.0;
    let unit = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|&s| s >= raw).unwrap_or(raw);
    let first = (lo / step).ceil() as i64;
    let last = (hi / step).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

fn label(v: f64) -> String {
    let s = format!("{v:.4}");
    let s = s.trim_end_matches('0').trim_end_matches('.');
    if s.is_empty() || s == "-0" { "0".into() } else { s.into() }
}

/// Exponents of ten for marks between two exponents: whole ones, and those of 2 and 5 where these are few.
fn powers(lo: f64, hi: f64) -> Vec<f64> {
    let whole = || (lo.floor() as i64..=hi.ceil() as i64).map(|i| i as f64);
    let within = |t: &f64| (lo..=hi).contains(t);
    let plain: Vec<f64> = whole().filter(within).collect();
    match plain.len() {
        0..=2 => whole().flat_map(|i| [1f64, 2.0, 5.0].map(|m| i + m.log10())).filter(within).collect(),
        3..=8 => plain,
        n => plain.into_iter().step_by(n.div_ceil(8)).collect(),
    }
}

/// A value of any size in few digits.
fn exponent(v: f64) -> String {
    if (1e-3..1e5).contains(&v) { label(v) } else { format!("{v:.0e}") }
}

/// Smallest and largest finite value, widened so that they differ.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (lo, hi) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    match (lo, hi) {
        _ if lo > hi => (0.0, 1.0),
        _ if lo == hi => (lo - 0.5, hi + 0.5),
        _ => (lo, hi),
    }
}

/// Charts below each other as one SVG document.
pub fn svg(charts: &[Chart]) -> String {
    let mut out = String::new();
    let total = HEIGHT * charts.len().max(1) as f64;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{total}" fill="#ffffff"/>"##
    );
    for (i, chart) in charts.iter().enumerate() {
        let _ = writeln!(out, r#"<g transform="translate(0 {})">"#, HEIGHT * i as f64);
        draw(&mut out, chart);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, chart: &Chart) {
    // On a logarithmic axis everything is drawn by exponents of ten.
    let scaled = |y: f64| match chart.log {
        true if y > 0.0 => y.log10(),
        true => f64::NAN,
        false => y,
    };
    let all = || chart.series.iter().flat_map(|s| s.points.iter().map(|&(x, y)| (x, scaled(y))));
    let (x0, x1) = range(all().map(|p| p.0));
    let (y0, y1) = range(all().map(|p| p.1));
    let px = |x: f64| LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let py = |y: f64| HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);

    let title = escape(&chart.title);
    let _ = writeln!(out, r#"<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{title}</text>"#);
    let (marks, text): (Vec<f64>, fn(f64) -> String) = match chart.log {
        true => (powers(y0, y1), |t| exponent(10f64.powf(t))),
        false => (ticks(y0, y1), label),
    };
    for t in marks {
        let y = py(t);
        let _ = writeln!(
            out,
            r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#dddddd"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"##,
            LEFT - 6.0,
            y + 4.0,
            text(t)
        );
    }
    for t in ticks(x0, x1) {
        let _ = writeln!(
            out,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            px(t),
            bottom + 16.0,
            label(t)
        );
    }
    let _ = writeln!(
        out,
        r##"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#333333"/><text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"##,
        (LEFT + right) / 2.0,
        bottom + 34.0,
        escape(&chart.x)
    );
    for (k, s) in chart.series.iter().enumerate() {
        let color = COLORS[k % COLORS.len()];
        let mut d = String::new();
        let mut pen = 'M';
        for (x, y) in s.points.iter().map(|&(x, y)| (x, scaled(y))) {
            if x.is_finite() && y.is_finite() {
                let _ = write!(d, "{pen}{:.1} {:.1}", px(x), py(y));
                pen = 'L';
            } else {
                pen = 'M';
            }
        }
        let y = TOP + 14.0 * k as f64;
        let _ = writeln!(out, r#"<path d="{d}" fill="none" stroke="{color}" stroke-width="2"/>"#);
        if let [(x, y)] = s.points[..]
            && scaled(y).is_finite()
        {
            let y = scaled(y);
            let _ = writeln!(out, r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{color}"/>"#, px(x), py(y));
        }
        let _ = writeln!(
            out,
            r#"<path d="M{} {y}h18" stroke="{color}" stroke-width="2"/><text x="{}" y="{}" text-anchor="end">{}</text>"#,
            right - 18.0,
            right - 24.0,
            y + 4.0,
            escape(&s.name)
        );
    }
}

/// A confusion matrix as SVG: a row per class of the data, a column per class that was predicted, shaded by the share of the row. Classes are
/// named by `names`, by their numbers without them.
pub fn confusion_matrix(rows: &[Vec<i64>], names: &dyn Fn(usize) -> String) -> String {
    const CELL: f64 = 44.0;
    let n = rows.len();
    let widest = (0..n).map(|i| names(i).chars().count()).max().unwrap_or(1).min(24) as f64;
    let (left, top) = (40.0 + 7.0 * widest, 60.0 + 5.0 * widest);
    let (width, height) = (left + CELL * n as f64 + 20.0, top + CELL * n as f64 + 20.0);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12">
<rect width="{width}" height="{height}" fill="#ffffff"/><text x="{left}" y="20" font-size="14" font-weight="bold">predicted class</text>
<text x="8" y="{:.1}" font-size="14" font-weight="bold">class</text>"##,
        top - 8.0
    );
    for (i, row) in rows.iter().enumerate() {
        let (y, total) = (top + CELL * i as f64, row.iter().sum::<i64>().max(1));
        let (text, at) = (escape(&names(i)), left + CELL * (i as f64 + 0.5));
        let _ = writeln!(
            out,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{text}</text><text transform="translate({:.1} {:.1}) rotate(-45)">{text}</text>"#,
            left - 8.0,
            y + CELL / 2.0 + 4.0,
            at,
            top - 8.0
        );
        for (k, &count) in row.iter().enumerate() {
            let (x, share) = (left + CELL * k as f64, count as f64 / total as f64);
            let ink = if share > 0.5 { "#ffffff" } else { "#222222" };
            let _ = writeln!(
                out,
                r##"<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="#0072b2" fill-opacity="{share:.3}" stroke="#dddddd"/><text x="{:.1}" y="{:.1}" text-anchor="middle" fill="{ink}">{count}</text>"##,
                x + CELL / 2.0,
                y + CELL / 2.0 + 4.0
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(1.0, 20.0), [5.0, 10.0, 15.0, 20.0]);
        assert!(ticks(0.91, 0.92).iter().all(|t| (0.91..=0.92).contains(t)));
    }

    #[test]
    fn logarithmic_marks_are_powers_of_ten() {
        assert_eq!(powers(-3.0, 1.0), [-3.0, -2.0, -1.0, 0.0, 1.0]);
        assert_eq!(powers(-0.1, 0.9).len(), 3);
        let series = vec![Series { name: "a".into(), points: vec![(1.0, 100.0), (2.0, 0.0), (3.0, 1.0)] }];
        let s = svg(&[Chart { title: "t".into(), x: "epoch".into(), series, log: true }]);
        // The 0 is a gap: two pieces of a line.
        assert!(s.contains(">100<") && s.contains(">10<") && !s.contains("NaN"), "{s}");
        let line = s.split("<path d=\"").find(|p| p.contains("stroke-width") && !p.contains("h18")).unwrap();
        assert_eq!(line.split('"').next().unwrap().matches('M').count(), 2, "{s}");
    }

    #[test]
    fn confusion_matrices_name_their_classes() {
        let s = confusion_matrix(&[vec![3, 1], vec![0, 0]], &|i| format!("<{i}>"));
        assert!(s.contains("&lt;1&gt;") && s.contains("fill-opacity=\"0.750\"") && !s.contains("NaN"));
        assert_eq!(s.matches("<rect").count(), 5);
    }

    #[test]
    fn gaps_single_points_and_escapes() {
        let series = vec![
            Series { name: "a<b".into(), points: vec![(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 3.0)] },
            Series { name: "one".into(), points: vec![(2.0, 2.0)] },
        ];
        let s = svg(&[Chart { title: "t".into(), x: "epoch".into(), series, log: false }]);
        assert!(s.starts_with("<svg") && s.trim_end().ends_with("</svg>"));
        assert!(s.contains("a&lt;b") && s.contains("<circle"));
        assert!(!s.contains("NaN") && !s.contains("inf"));
        assert_eq!(s.matches("<path d=\"M").count(), 1 + 2 + 2);
    }
}
