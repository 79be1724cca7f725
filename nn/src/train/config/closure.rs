//! `optimizer`: methods that evaluate the loss themselves, each step on one batch.

use trefoil::ops::optimizer::Prox;

use super::kind::{Row, row};
use crate::core::error::NnError;
use crate::core::options::{COUNT, NOT_NEGATIVE, POSITIVE, join};
use crate::train::optim::Method;

/// Method, and iterations per batch.
pub(super) type Made = (Method, u64);

pub(super) static METHODS: &[Row<Made>] = &[
    row!("coordinate_descent" { lr: f64 = 1.0, POSITIVE; max_iter: u64 = 20, COUNT; } |_path| {
        (Method::CoordinateDescent { lr }, max_iter)
    }),
    row!("conjugate_gradient" { max_iter: u64 = 20, COUNT; } |_path| (Method::ConjugateGradient, max_iter)),
    row!("bfgs" { damping: bool = false; max_parameters: usize = 16384, COUNT; max_iter: u64 = 20, COUNT; } |_path| {
        (Method::Bfgs { damping, max_parameters }, max_iter)
    }),
    row!("lbfgs" {
        lr: f64 = 1.0, POSITIVE;
        history_size: usize = 10, COUNT;
        line_search: bool = true;
        max_iter: u64 = 20, COUNT;
    } |_path| (Method::Lbfgs { history: history_size, line_search, lr }, max_iter)),
    row!("dfp" { max_parameters: usize = 16384, COUNT; max_iter: u64 = 20, COUNT; } |_path| {
        (Method::Dfp { max_parameters }, max_iter)
    }),
    row!("newton_cg" { max_iter: u64 = 20, COUNT; } |_path| (Method::NewtonCg, max_iter)),
    row!("newton" { max_parameters: usize = 2048, COUNT; max_iter: u64 = 20, COUNT; } |_path| {
        (Method::DenseNewton { max_parameters }, max_iter)
    }),
    row!("levenberg_marquardt" {
        lambda: f64 = 1e-3, POSITIVE;
        max_parameters: usize = 4096;
        max_iter: u64 = 20, COUNT;
    } |_path| (Method::LevenbergMarquardt { lambda, max_parameters }, max_iter)),
    row!("trust_region" {
        radius: f64 = 1.0, POSITIVE;
        max_radius: f64 = 100.0, POSITIVE;
        max_iter: u64 = 20, COUNT;
    } |path| {
        if radius > max_radius {
            let what = format!("expected at most max_radius = {max_radius}, got {radius}");
            return Err(NnError::config(join(path, "radius"), what));
        }
        (Method::TrustRegion { radius, max_radius }, max_iter)
    }),
    row!("admm" {
        lr: f64, POSITIVE;
        l1: f64 = 0.0, NOT_NEGATIVE;
        l2: f64 = 0.0, NOT_NEGATIVE;
        rho: f64 = 1.0, POSITIVE;
        inner: usize = 5, COUNT;
        max_iter: u64 = 20, COUNT;
    } |_path| (Method::Admm { prox: Prox::ElasticNet { l1, l2 }, rho, lr, inner }, max_iter)),
];
