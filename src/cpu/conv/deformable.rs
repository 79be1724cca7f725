//! Deformable convolution on the CPU, from the definition.

use crate::buffer::View;
use crate::cpu::conv::{cells, channel_sums};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::conv::*;

/// A bilinear read at a displaced place: up to four elements of a plane with their weights and the weights' derivatives along H and W.
struct Read {
    at: [(usize, f64, f64, f64); 4],
    count: usize,
}

impl Read {
    /// The elements around (y, x); none for a place that is a whole element or more outside.
    fn new(y: f64, x: f64, height: usize, width: usize) -> Self {
        let mut read = Read { at: [(0, 0.0, 0.0, 0.0); 4], count: 0 };
        let (y0, x0) = (y.floor(), x.floor());
        let (fy, fx) = (y - y0, x - x0);
        for (dy, wy, sy) in [(0.0, 1.0 - fy, -1.0), (1.0, fy, 1.0)] {
            for (dx, wx, sx) in [(0.0, 1.0 - fx, -1.0), (1.0, fx, 1.0)] {
                let (r, c) = (y0 + dy, x0 + dx);
                let inside = r >= 0.0 && c >= 0.0 && r < height as f64 && c < width as f64;
                if inside {
                    read.at[read.count] = (r as usize * width + c as usize, wy * wx, sy * wx, wy * sx);
                    read.count += 1;
                }
            }
        }
        read
    }

    fn taps(&self) -> &[(usize, f64, f64, f64)] {
        &self.at[..self.count]
    }
}

/// All operands in f64.
struct Field {
    s: DeformShape,
    x: Vec<f64>,
    offset: Vec<f64>,
    mask: Option<Vec<f64>>,
}

impl Field {
    fn new(
        op: &'static str,
        s: DeformShape,
        x: View<'_>,
        offset: View<'_>,
        mask: Option<View<'_>>,
    ) -> Result<Self> {
        let mask = mask.map(|m| gather_f64(op, m)).transpose()?;
        Ok(Field { s, x: gather_f64(op, x)?, offset: gather_f64(op, offset)?, mask })
    }

    /// Index into the mask of a tap of window `o`; that of the displacement along H is at [`Field::shift_at`].
    fn mask_at(&self, n: usize, deform: usize, tap: usize, o: usize) -> usize {
        let c = &self.s.conv;
        ((n * self.s.deform + deform) * c.taps() + tap) * c.out_plane() + o
    }

    fn shift_at(&self, n: usize, deform: usize, tap: usize, o: usize) -> usize {
        let c = &self.s.conv;
        ((n * self.s.deform + deform) * c.taps() + tap) * 2 * c.out_plane() + o
    }

    /// Calls `f(n, deformation group, tap, window, factor, read)` for every displaced tap.
    fn each(&self, mut f: impl FnMut(usize, usize, usize, usize, f64, &Read)) {
        let c = &self.s.conv;
        let [_, height, width] = c.input;
        for n in 0..c.n {
            for deform in 0..self.s.deform {
                for (tap, k) in cells(c.kernel).enumerate() {
                    for (o, cell) in cells(c.output).enumerate() {
                        let at = self.shift_at(n, deform, tap, o);
                        let base = |a: usize| {
                            (cell[a] * c.stride[a] + k[a] * c.dilation[a]) as f64 - c.pad[a] as f64
                        };
                        let read = Read::new(
                            base(1) + self.offset[at],
                            base(2) + self.offset[at + c.out_plane()],
                            height,
                            width,
                        );
                        let factor = self.mask.as_ref().map_or(1.0, |m| m[self.mask_at(n, deform, tap, o)]);
                        f(n, deform, tap, o, factor, &read);
                    }
                }
            }
        }
    }

    /// Channels of a deformation group.
    fn channels(&self, deform: usize) -> std::ops::Range<usize> {
        let per = self.s.conv.ci / self.s.deform;
        deform * per..(deform + 1) * per
    }

    fn plane(&self, n: usize, channel: usize) -> &[f64] {
        let plane = self.s.conv.in_plane();
        &self.x[(n * self.s.conv.ci + channel) * plane..][..plane]
    }
}

impl DeformableConvOps for Kernels {
    fn deform_conv(&self, p: &Conv, io: DeformConvIo<'_>) -> Result<()> {
        const OP: &str = "deform_conv";
        let s = check_deform_conv(p, &io)?;
        let _timed = self.count("deform_conv");
        let field = Field::new(OP, s, io.x, io.offset, io.mask)?;
        let (c, w) = (s.conv, gather_f64(OP, io.w)?);
        let bias = io.bias.map(|b| gather_f64(OP, b)).transpose()?;
        let (out, taps, cig, cog) = (c.out_plane(), c.taps(), c.cig(), c.cog());
        let mut y: Vec<f64> =
            (0..c.n * c.co * out).map(|i| bias.as_ref().map_or(0.0, |b| b[i / out % c.co])).try_vec()?;
        field.each(|n, deform, tap, o, factor, read| {
            for channel in field.channels(deform) {
                let x = field.plane(n, channel);
                let v = factor * read.taps().iter().map(|&(at, weight, ..)| weight * x[at]).sum::<f64>();
                for oc in channel / cig * cog..(channel / cig + 1) * cog {
                    y[(n * c.co + oc) * out + o] += w[(oc * cig + channel % cig) * taps + tap] * v;
                }
            }
        });
        store_f64(OP, &io.y, &y)
    }

    fn deform_conv_bwd(&self, p: &Conv, io: DeformConvBwd<'_>) -> Result<()> {
        const OP: &str = "deform_conv_bwd";
        let s = check_deform_conv_bwd(p, &io)?;
        let _timed = self.count("deform_conv_bwd");
        let field = Field::new(OP, s, io.x, io.offset, io.mask)?;
        let (c, w, dy) = (s.conv, gather_f64(OP, io.w)?, gather_f64(OP, io.dy)?);
        let (out, taps, cig, cog) = (c.out_plane(), c.taps(), c.cig(), c.cog());
        let (mut dx, mut dw) = (filled(field.x.len(), 0.0)?, filled(w.len(), 0.0)?);
        let mut doffset = filled(field.offset.len(), 0.0)?;
        let mut dmask = filled(field.mask.as_ref().map_or(0, Vec::len), 0.0)?;
        field.each(|n, deform, tap, o, factor, read| {
            for channel in field.channels(deform) {
                let x = field.plane(n, channel);
                let sample: f64 = read.taps().iter().map(|&(at, weight, ..)| weight * x[at]).sum();
                // Gradient of the weighted sample.
                let mut d = 0.0;
                for oc in channel / cig * cog..(channel / cig + 1) * cog {
                    let (dy, at) = (dy[(n * c.co + oc) * out + o], (oc * cig + channel % cig) * taps + tap);
                    d += w[at] * dy;
                    dw[at] += dy * factor * sample;
                }
                let plane = (n * c.ci + channel) * c.in_plane();
                let shift = field.shift_at(n, deform, tap, o);
                for &(at, weight, along_h, along_w) in read.taps() {
                    dx[plane + at] += d * factor * weight;
                    doffset[shift] += d * factor * along_h * x[at];
                    doffset[shift + out] += d * factor * along_w * x[at];
                }
                if field.mask.is_some() {
                    dmask[field.mask_at(n, deform, tap, o)] += d * sample;
                }
            }
        });
        let db = channel_sums(&dy, c.co, out)?;
        let all = [(&io.dx, dx), (&io.dw, dw), (&io.doffset, doffset), (&io.dmask, dmask), (&io.dbias, db)];
        for (g, v) in all {
            g.as_ref().map_or(Ok(()), |g| store_grad(OP, g, &v))?;
        }
        Ok(())
    }
}
