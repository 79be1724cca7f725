//! Convolutions on an OpenCL device against the CPU backend in f64, by every variant. Operands are small multiples of 1/2, so that all sums are
//! exact and results must be equal.

use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::error::GpuError;
use crate::ops::conv::*;
use crate::ops::core::CoreOps;
use crate::ops::core::InteropOps;
use crate::test_devices::present;
use crate::{CpuBackend, IGpuBackend};

fn opencl() -> Option<Engine> {
    present("opencl", crate::driver::opencl_open(0).and_then(Engine::new))
}

/// Multiples of 1/2 in [-2, 2].
fn values(n: usize, seed: u64) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) % 9
    };
    (0..n).map(|_| next() as f64 / 2.0 - 2.0).collect()
}

fn put(b: &dyn IGpuBackend, dtype: DType, v: &[f64]) -> Buffer {
    let mut buf = b.alloc(dtype, v.len()).unwrap();
    let bytes: Vec<u8> = match dtype {
        DType::F64 => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
    };
    b.write_bytes(buf.view_mut(), &bytes).unwrap();
    buf
}

fn get(b: &dyn IGpuBackend, buf: &Buffer) -> Vec<f64> {
    let mut raw = vec![0; buf.len() * buf.dtype().size()];
    b.read_bytes(buf.view(), &mut raw).unwrap();
    match buf.dtype() {
        DType::F64 => raw.chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect(),
        _ => raw.chunks(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect(),
    }
}

/// Images, groups, channels per group of input and output, input axes, kernel, stride, padding, dilation.
struct Problem<'a> {
    n: usize,
    groups: usize,
    cig: usize,
    cog: usize,
    input: &'a [usize],
    kernel: &'a [usize],
    stride: usize,
    pad: usize,
    dilation: usize,
}

impl Problem<'_> {
    fn plan(&self) -> Conv {
        Conv::new().stride(self.stride).pad(self.pad).dilation(self.dilation).groups(self.groups)
    }

    fn shapes(&self) -> [Vec<usize>; 3] {
        let one =
            |(&i, &k): (&usize, &usize)| (i + 2 * self.pad - self.dilation * (k - 1) - 1) / self.stride + 1;
        let out: Vec<usize> = self.input.iter().zip(self.kernel).map(one).collect();
        [
            [&[self.n, self.groups * self.cig], self.input].concat(),
            [&[self.groups * self.cog, self.cig], self.kernel].concat(),
            [&[self.n, self.groups * self.cog], out.as_slice()].concat(),
        ]
    }

    /// y, dx, dw, and the same of the transposed convolution with this weight.
    fn run(&self, b: &dyn IGpuBackend, dtype: DType) -> crate::Result<Vec<Vec<f64>>> {
        let [xs, ws, ys] = self.shapes();
        let count = |s: &[usize]| s.iter().product::<usize>();
        let [x, w, dy] =
            [(&xs, 1), (&ws, 2), (&ys, 3)].map(|(s, seed)| put(b, dtype, &values(count(s), seed)));
        let new = |s: &[usize]| b.alloc(dtype, count(s)).unwrap();
        let (mut y, mut dx, mut dw) = (new(&ys), new(&xs), new(&ws));
        let p = self.plan();
        b.conv(&p, ConvIo::new(x.shaped(&xs)?, w.shaped(&ws)?, y.shaped_mut(&ys)?))?;
        let mut io = ConvBwd::new(dy.shaped(&ys)?);
        (io.x, io.w) = (Some(x.shaped(&xs)?), Some(w.shaped(&ws)?));
        (io.dx, io.dw) = (Some(dx.shaped_mut(&xs)?.into()), Some(dw.shaped_mut(&ws)?.into()));
        b.conv_bwd(&p, io)?;
        let mut all = vec![get(b, &y), get(b, &dx), get(b, &dw)];
        // The output padding that leads back to the input's axes.
        let extra: Vec<usize> = (0..self.input.len())
            .map(|a| (xs[2 + a] + 2 * self.pad - self.dilation * (self.kernel[a] - 1) - 1) % self.stride)
            .collect();
        let p = p.out_pad(extra.as_slice());
        b.conv_transpose(&p, ConvIo::new(dy.shaped(&ys)?, w.shaped(&ws)?, dx.shaped_mut(&xs)?))?;
        let mut io = ConvBwd::new(x.shaped(&xs)?);
        (io.x, io.w) = (Some(dy.shaped(&ys)?), Some(w.shaped(&ws)?));
        (io.dx, io.dw) = (Some(y.shaped_mut(&ys)?.into()), Some(dw.shaped_mut(&ws)?.into()));
        b.conv_transpose_bwd(&p, io)?;
        all.extend([get(b, &dx), get(b, &y), get(b, &dw)]);
        Ok(all)
    }

    fn reference(&self) -> Vec<Vec<f64>> {
        let want = self.run(&CpuBackend::new(), DType::F64).unwrap();
        // The adjoint as an operation of its own is the same product.
        assert_eq!(want[1], want[3]);
        want
    }

    fn check(&self, want: &[Vec<f64>], b: &Engine, dtype: DType, what: &str) {
        let got = match self.run(b, dtype) {
            Err(GpuError::Unsupported { .. }) => return,
            r => r.unwrap(),
        };
        let names = ["y", "dx", "dw", "transposed y", "transposed dx", "transposed dw"];
        for ((got, want), name) in got.iter().zip(want).zip(names) {
            let wrong = got.iter().zip(want).position(|(g, w)| g != w);
            assert!(
                wrong.is_none(),
                "{what} {dtype} {:?} by {:?}: {name} at {wrong:?}: {:?} instead of {:?}",
                self.input,
                self.kernel,
                wrong.map(|i| got[i]),
                wrong.map(|i| want[i])
            );
        }
    }
}

#[test]
fn every_variant_computes_the_same() {
    let problems = [
        // More rows, columns and products than any tile has, none a multiple of one.
        Problem {
            n: 2,
            groups: 1,
            cig: 21,
            cog: 150,
            input: &[9, 9],
            kernel: &[3, 3],
            stride: 1,
            pad: 1,
            dilation: 1,
        },
        Problem {
            n: 3,
            groups: 2,
            cig: 5,
            cog: 70,
            input: &[17, 9],
            kernel: &[3, 2],
            stride: 2,
            pad: 1,
            dilation: 1,
        },
        Problem {
            n: 1,
            groups: 1,
            cig: 150,
            cog: 3,
            input: &[4, 5, 6],
            kernel: &[2, 3, 1],
            stride: 3,
            pad: 1,
            dilation: 2,
        },
        Problem {
            n: 2,
            groups: 1,
            cig: 9,
            cog: 33,
            input: &[700],
            kernel: &[5],
            stride: 4,
            pad: 3,
            dilation: 3,
        },
        Problem {
            n: 2,
            groups: 1,
            cig: 40,
            cog: 66,
            input: &[6, 8],
            kernel: &[1, 1],
            stride: 1,
            pad: 0,
            dilation: 1,
        },
        Problem {
            n: 2,
            groups: 11,
            cig: 1,
            cog: 2,
            input: &[11, 37],
            kernel: &[5, 3],
            stride: 1,
            pad: 2,
            dilation: 1,
        },
        Problem {
            n: 2,
            groups: 7,
            cig: 1,
            cog: 1,
            input: &[19, 18],
            kernel: &[3, 3],
            stride: 2,
            pad: 1,
            dilation: 1,
        },
        // Maps that keep their size, in rows of whole fours and others.
        Problem {
            n: 3,
            groups: 5,
            cig: 1,
            cog: 1,
            input: &[9, 12],
            kernel: &[3, 3],
            stride: 1,
            pad: 1,
            dilation: 1,
        },
        Problem {
            n: 2,
            groups: 3,
            cig: 1,
            cog: 3,
            input: &[6, 7],
            kernel: &[3, 3],
            stride: 1,
            pad: 1,
            dilation: 1,
        },
        Problem {
            n: 2,
            groups: 3,
            cig: 2,
            cog: 1,
            input: &[5, 8],
            kernel: &[3, 3],
            stride: 1,
            pad: 1,
            dilation: 1,
        },
        Problem {
            n: 9,
            groups: 2,
            cig: 1,
            cog: 2,
            input: &[28, 28],
            kernel: &[3, 3],
            stride: 1,
            pad: 1,
            dilation: 1,
        },
        // One tap of nine meets the map, and four that are the whole map.
        Problem {
            n: 3,
            groups: 2,
            cig: 4,
            cog: 5,
            input: &[1, 1],
            kernel: &[3, 3],
            stride: 1,
            pad: 1,
            dilation: 1,
        },
        Problem {
            n: 5,
            groups: 1,
            cig: 7,
            cog: 6,
            input: &[2, 2],
            kernel: &[3, 3],
            stride: 2,
            pad: 1,
            dilation: 1,
        },
    ];
    let Some(gpu) = opencl() else { return };
    let wanted = problems.each_ref().map(Problem::reference);
    let mut ways = vec!["portable".to_string()];
    ways.extend(gpu.explain("conv").unwrap().rejected.into_iter().map(|r| r.0));
    assert!(ways.len() > 5);
    for (number, way) in ways.iter().enumerate() {
        for op in ["conv", "conv_bwd", "conv_transpose", "conv_transpose_bwd"] {
            gpu.pin_variant(op, Some(way)).unwrap();
        }
        for (i, (p, want)) in problems.iter().zip(&wanted).enumerate() {
            p.check(want, &gpu, DType::F32, way);
            // Both types have one text: every way takes a third of the problems in f64, in turn.
            if (i + number) % 3 == 0 && gpu.caps().supports(DType::F64) {
                p.check(want, &gpu, DType::F64, way);
            }
        }
    }
}

#[test]
fn depthwise_convolutions_that_halve_maps() {
    let Some(gpu) = opencl() else { return };
    // Rows of whole fours and others; several strips, or a part of one; maps that are smaller than a window.
    let maps: [&[usize]; 8] = [&[28, 28], &[17, 12], &[16, 19], &[7, 7], &[9, 34], &[8, 4], &[1, 9], &[3, 2]];
    for (i, input) in maps.into_iter().enumerate() {
        for (side, kernel) in [(3, &[3, 3]), (5, &[5, 5])] {
            for [cig, cog] in [[1, 1], [1, 2], [2, 1]] {
                let p = Problem {
                    n: 3,
                    groups: 5,
                    cig,
                    cog,
                    input,
                    kernel,
                    stride: 2,
                    pad: side / 2,
                    dilation: 1,
                };
                let want = p.reference();
                p.check(&want, &gpu, DType::F32, "depthwise");
                if i % 2 == 0 && gpu.caps().supports(DType::F64) {
                    p.check(&want, &gpu, DType::F64, "depthwise");
                }
            }
        }
    }
}

#[test]
fn adjoints_of_few_channels_by_place() {
    let Some(gpu) = opencl() else { return };
    gpu.pin_variant("conv_transpose", Some("few_channels")).unwrap();
    let problems: [(usize, &[usize], &[usize], usize); 7] = [
        (3, &[17, 9], &[3, 3], 1),
        (3, &[30, 72], &[7, 7], 3),
        (2, &[12, 13], &[5, 2], 2),
        (4, &[9, 22], &[4, 3], 0),
        (1, &[1, 7], &[1, 3], 1),
        (3, &[11, 601], &[8, 6], 2),
        (3, &[300, 6], &[15, 5], 4),
    ];
    for (cig, input, kernel, pad) in problems {
        let p = Problem { n: 2, groups: 1, cig, cog: 5, input, kernel, stride: 2, pad, dilation: 1 };
        assert!(p.run(&gpu, DType::F32).is_ok(), "{input:?} by {kernel:?}");
        p.check(&p.reference(), &gpu, DType::F32, "few channels");
    }
}

#[test]
fn dilated_convolutions_of_uneven_windows() {
    let Some(gpu) = opencl() else { return };
    for kernel in [&[3, 2], &[2, 3], &[1, 4]] {
        for (dilation, stride) in [(2, 1), (2, 2), (3, 1), (3, 2)] {
            let p = Problem {
                n: 2,
                groups: 2,
                cig: 3,
                cog: 2,
                input: &[12, 13],
                kernel,
                stride,
                pad: 2,
                dilation,
            };
            p.check(&p.reference(), &gpu, DType::F32, "dilated");
        }
    }
}

/// Displacements far beyond what a plan holds: no tap is inside.
#[test]
fn distant_taps_read_nothing() {
    let Some(gpu) = opencl() else { return };
    let p = Problem {
        n: 1,
        groups: 1,
        cig: 2,
        cog: 2,
        input: &[10],
        kernel: &[2],
        stride: 1,
        pad: 1 << 26,
        dilation: 1 << 27,
    };
    p.check(&p.reference(), &gpu, DType::F32, "distant");
    let [_, _, ys] = p.shapes();
    assert_eq!(ys, [1, 2, 10]);
}

#[test]
fn unfolding_and_folding_are_adjoint() {
    fn check(b: &dyn IGpuBackend) {
        let p = Conv::new().stride([2, 1]).pad([1, 2]).dilation([1, 2]);
        // Four windows along the height, (9 + 4 - 3) / 1 + 1 = 11 along the width.
        let (xs, cs, kernel) = ([2, 3, 7, 9], [2, 3 * 6, 4 * 11], [3, 2]);
        let count = |s: &[usize]| s.iter().product::<usize>();
        let (x, c) = (values(count(&xs), 5), values(count(&cs), 6));
        let (bx, bc) = (put(b, DType::F32, &x), put(b, DType::F32, &c));
        let mut col = b.alloc(DType::F32, c.len()).unwrap();
        let mut im = b.alloc(DType::F32, x.len()).unwrap();
        b.im2col(&p, &kernel, bx.shaped(&xs).unwrap(), col.shaped_mut(&cs).unwrap().into()).unwrap();
        b.col2im(&p, &kernel, bc.shaped(&cs).unwrap(), im.shaped_mut(&xs).unwrap().into()).unwrap();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (left, right) = (dot(&get(b, &col), &c), dot(&x, &get(b, &im)));
        assert_eq!(left, right);
        assert_ne!(left, 0.0);
    }
    check(&CpuBackend::new());
    if let Some(gpu) = opencl() {
        check(&gpu);
    }
}
