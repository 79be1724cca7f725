//! Line charts as SVG.

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
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

fn escape(s: &str) -> String {
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
    let all = || chart.series.iter().flat_map(|s| s.points.iter().copied());
    let (x0, x1) = range(all().map(|p| p.0));
    let (y0, y1) = range(all().map(|p| p.1));
    let px = |x: f64| LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let py = |y: f64| HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);

    let title = escape(&chart.title);
    let _ = writeln!(out, r#"<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{title}</text>"#);
    for t in ticks(y0, y1) {
        let y = py(t);
        let _ = writeln!(
            out,
            r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#dddddd"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"##,
            LEFT - 6.0,
            y + 4.0,
            label(t)
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
        for &(x, y) in &s.points {
            if x.is_finite() && y.is_finite() {
                let _ = write!(d, "{pen}{:.1} {:.1}", px(x), py(y));
                pen = 'L';
            } else {
                pen = 'M';
            }
        }
        let y = TOP + 14.0 * k as f64;
        let _ = writeln!(out, r#"<path d="{d}" fill="none" stroke="{color}" stroke-width="2"/>"#);
        if let [(x, y)] = s.points[..] {
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
    fn gaps_single_points_and_escapes() {
        let series = vec![
            Series { name: "a<b".into(), points: vec![(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 3.0)] },
            Series { name: "one".into(), points: vec![(2.0, 2.0)] },
        ];
        let s = svg(&[Chart { title: "t".into(), x: "epoch".into(), series }]);
        assert!(s.starts_with("<svg") && s.trim_end().ends_with("</svg>"));
        assert!(s.contains("a&lt;b") && s.contains("<circle"));
        assert!(!s.contains("NaN") && !s.contains("inf"));
        assert_eq!(s.matches("<path d=\"M").count(), 1 + 2 + 2);
    }
}
