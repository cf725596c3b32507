//! Curves over a logarithmic axis as SVG.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// One curve.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Points, x rising.
    pub points: Vec<(f64, f64)>,
}

/// The words round a picture.
#[derive(Debug, Clone)]
pub struct Captions<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below the logarithmic axis.
    pub x: &'a str,
    /// Beside the other axis.
    pub y: &'a str,
}

const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 92, 175),
    RGBColor(200, 60, 30),
    RGBColor(0, 135, 80),
    RGBColor(130, 70, 160),
    RGBColor(190, 140, 0),
    RGBColor(0, 150, 170),
    RGBColor(110, 110, 110),
    RGBColor(210, 80, 140),
    RGBColor(90, 60, 30),
    RGBColor(120, 160, 30),
    RGBColor(20, 20, 20),
    RGBColor(150, 170, 220),
];

/// Width of the chart, of the legend beside it, and the height of both.
const SIZE: (u32, u32, u32) = (760, 400, 480);

/// Draws curves with marked points; x is logarithmic with ticks at powers of two, y linear. A
/// point may be ringed, and have a bar of ± its error: `errors[c][p]` for point p of curve c, none
/// where it is missing. Points that are not finite are left out.
pub fn curves_svg(
    curves: &[Curve],
    errors: &[Vec<f64>],
    captions: &Captions<'_>,
    ringed: Option<(f64, f64)>,
) -> String {
    let picture = Picture {
        curves,
        errors,
        captions,
        ringed,
    };
    picture.svg()
}

/// As [`curves_svg`], without a ring.
pub fn curves_with_errors_svg(
    curves: &[Curve],
    errors: &[Vec<f64>],
    captions: &Captions<'_>,
) -> String {
    curves_svg(curves, errors, captions, None)
}

struct Picture<'a> {
    curves: &'a [Curve],
    errors: &'a [Vec<f64>],
    captions: &'a Captions<'a>,
    ringed: Option<(f64, f64)>,
}

impl Picture<'_> {
    fn svg(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail but for captions without a font, which SVG does not
        // need.
        let _ = self.draw(&mut text);
        text
    }

    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        points.filter(|point| finite(point))
    }

    /// Least and largest of a coordinate, never equal.
    fn range(&self, get: fn(&(f64, f64)) -> f64) -> (f64, f64) {
        let low = self.points().map(get).fold(f64::INFINITY, f64::min);
        let high = self.points().map(get).fold(f64::NEG_INFINITY, f64::max);
        if low < high {
            (low, high)
        } else {
            (low - 0.5, low + 0.5)
        }
    }

    /// The range of y with the bars of errors in it.
    fn height(&self) -> (f64, f64) {
        let (mut low, mut high) = self.range(|point| point.1);
        for (curve, errors) in self.curves.iter().zip(self.errors) {
            for (point, error) in curve.points.iter().zip(errors) {
                if finite(point) && error.is_finite() {
                    (low, high) = (low.min(point.1 - error), high.max(point.1 + error));
                }
            }
        }
        (low, high)
    }

    fn draw<'t>(&self, text: &'t mut String) -> Result<(), Box<dyn std::error::Error + 't>> {
        if self.points().next().is_none() {
            return Ok(());
        }
        let (left, right) = self.range(|point| point.0.log2());
        let (low, high) = self.height();
        let margin = 0.04 * (high - low);
        let (width, beside, height) = SIZE;
        let several = self.curves.len() > 1;
        let size = (if several { width + beside } else { width }, height);
        let root = SVGBackend::with_string(text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (left_part, right_part) = root.split_horizontally(width);
        if several {
            draw_legend(&right_part, self.curves)?;
        }
        let mut chart = ChartBuilder::on(&left_part)
            .margin(14)
            .caption(self.captions.title, ("sans-serif", 17))
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(left - 0.1..right + 0.1, low - margin..high + margin)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_labels(((right - left).ceil() as usize + 1).clamp(2, 14))
            .x_label_formatter(&|x| power(*x))
            .x_desc(self.captions.x)
            .y_desc(self.captions.y)
            .label_style(("sans-serif", 13))
            .draw()?;
        draw_errors(&mut chart, self.curves, self.errors)?;
        draw_curves(&mut chart, self.curves, self.ringed)?;
        root.present()?;
        Ok(())
    }
}

type Area<'b> = DrawingArea<SVGBackend<'b>, plotters::coord::Shift>;

/// Names beside lines of their colours, one below the other.
fn draw_legend<'b>(
    area: &Area<'b>,
    curves: &[Curve],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'b> as DrawingBackend>::ErrorType>> {
    for (index, curve) in curves.iter().enumerate() {
        let (colour, y) = (colour(index), 60 + 24 * index as i32);
        let line = [(6, y), (30, y)];
        area.draw(&PathElement::new(line, colour.stroke_width(2)))?;
        area.draw(&Circle::new((18, y), 3, colour.filled()))?;
        let name = curve.name.clone();
        area.draw(&Text::new(name, (38, y - 8), ("sans-serif", 13)))?;
    }
    Ok(())
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn finite(&(x, y): &(f64, f64)) -> bool {
    x > 0.0 && x.is_finite() && y.is_finite()
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_curves<'b>(
    chart: &mut Chart<'_, 'b>,
    curves: &[Curve],
    ringed: Option<(f64, f64)>,
) -> Result<(), Box<dyn std::error::Error + 'b>> {
    for (index, curve) in curves.iter().enumerate() {
        let colour = colour(index);
        let points = || {
            let points = curve.points.iter().filter(|point| finite(point));
            points.map(|&(x, y)| (x.log2(), y))
        };
        chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    if let Some((x, y)) = ringed {
        let ring = Circle::new((x.log2(), y), 8, BLACK.stroke_width(2));
        chart.draw_series(std::iter::once(ring))?;
    }
    Ok(())
}

/// A vertical bar through every point that has an error.
fn draw_errors<'b>(
    chart: &mut Chart<'_, 'b>,
    curves: &[Curve],
    errors: &[Vec<f64>],
) -> Result<(), Box<dyn std::error::Error + 'b>> {
    for (index, (curve, errors)) in curves.iter().zip(errors).enumerate() {
        let style = colour(index).mix(0.6).stroke_width(1);
        let bars = curve.points.iter().zip(errors);
        let bars = bars.filter(|(point, error)| finite(point) && **error > 0.0);
        let bars = bars.filter(|(_, error)| error.is_finite());
        let bars = bars.map(|(&(x, y), error)| {
            PathElement::new([(x.log2(), y - error), (x.log2(), y + error)], style)
        });
        chart.draw_series(bars)?;
    }
    Ok(())
}

/// 2^x in as few digits as show it.
fn power(x: f64) -> String {
    let value = x.exp2();
    if (value - value.round()).abs() < 1e-6 * value {
        return format!("{value:.0}");
    }
    if value < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_holds_its_words_and_no_stray_numbers() {
        let curve = Curve {
            name: "one".into(),
            points: vec![(1.0, 10.0), (2.0, f64::NAN), (4.0, 90.0)],
        };
        let captions = Captions {
            title: "title",
            x: "states",
            y: "accuracy",
        };
        let two = [curve.clone(), curve.clone()];
        let svg = curves_svg(&two, &[], &captions, Some((4.0, 90.0)));
        for word in ["title", "states", "accuracy", "one", "</svg>"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!svg.contains("NaN"));
        let barred = curves_with_errors_svg(std::slice::from_ref(&curve), &[vec![5.0]], &captions);
        assert!(
            barred.len() > curves_svg(std::slice::from_ref(&curve), &[], &captions, None).len()
        );
        let nothing = Curve {
            points: Vec::new(),
            ..curve
        };
        assert!(!curves_svg(&[nothing], &[], &captions, None).contains("NaN"));
    }
}
