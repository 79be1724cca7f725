"""Cases of the suites that `write.py` writes."""
from table import Table

T = Table("trefoil own 1")
R = dict

for k in ("adan_update", "sophia_update"):
    T(k, R(shape=(7,)), R(shape=(3, 41), steps=6), R(shape=(1030,), steps=3, wd=0.1, lr=0.05), R(shape=(5,), found_inf=1.0, steps=2),
      R(shape=(70,), inv_scale=0.125, steps=3), R(shape=(9,), maximize=True, steps=2), R(shape=(0,)), R(shape=(6,), step=0, err="invalid"))
T("adan_update", R(shape=(33,), resume=True, step=9, steps=4), R(shape=(64,), gdtype="bf16", steps=2), R(shape=(17,), b1=0.9, b2=0.8, b3=0.95, steps=5))
T("sophia_update", R(shape=(50,), gamma=10.0, steps=4))
T("sophia_curvature", R(shape=(19,)), R(shape=(3, 40), batch=32.0, steps=3))

LISTS = [R(shapes=[(5,)], steps=1), R(shapes=[(3,), (4, 9)], steps=5), R(shapes=[(2, 4100), (7,), (31,)], steps=2),
         R(shapes=[(6,), (5,)], steps=3, inv_scale=0.5), R(shapes=[(6,)], steps=3, found_inf=1.0), R(shapes=[(6,), (8,)], steps=3, maximize=True)]
T("hypergradient_sgd_update", *LISTS, lr=0.05, rate=1e-5)
T("hypergradient_sgd_update", R(shapes=[(4,)], steps=8, lr=0.01, rate=0.01, tag="fast"))
T("schedule_free_sgd_update", *LISTS, lr=0.05, wd=0.1)
T("schedule_free_sgd_update", R(shapes=[(40,)], steps=12, lr=0.1, b=0.5, tag="half"), R(shapes=[(4,)], steps=3, lr=0.0, tag="rate_0"))
T("schedule_free_adamw_update", *LISTS, lr=0.05, wd=0.1)
T("schedule_free_adamw_update", R(shapes=[(40,)], steps=12, lr=0.01, b=0.95, b2=0.99, tag="other_decays"))
T("dadapt_sgd_update", *LISTS, d0=0.5, wd=0.01)
T("dadapt_sgd_update", R(shapes=[(40,)], steps=8, d0=0.1, mu=0.9, growth=1.02, tag="slow_growth"))
T("dadapt_adam_update", *LISTS, d0=0.03125, wd=0.1)
T("dadapt_adam_update", R(shapes=[(40,)], steps=8, d0=0.01, growth=1.02, tag="slow_growth"))
T("prodigy_update", *LISTS, d0=0.25, wd=0.1)
T("prodigy_update", R(shapes=[(40,)], steps=8, d0=0.1, coef=2.0, growth=1.02, tag="slow_growth"), R(shapes=[(4,)], d0=0.0, err="invalid", tag="d0_0"))

T("sparse_adam_step", R(shape=(7, 5)), R(shape=(40, 33), n=50, steps=4), R(shape=(9, 4), n=1, steps=3, itype="i32"), R(shape=(3, 300), n=20, steps=2),
  R(shape=(8, 4), n=0), R(shape=(8, 4), steps=3, inv_scale=0.25), R(shape=(8, 4), steps=2, found_inf=1.0), R(shape=(8, 4), steps=2, maximize=True))
for rule in ("sgd", "momentum", "nag", "adam", "adamw", "amsgrad", "radam", "adamax", "rmsprop", "rmsprop_momentum", "rmsprop_centered", "adagrad",
             "adadelta"):
    T("sparse_step", R(shape=(11, 6), n=9, steps=4, rule=rule, wd=0.1), R(shape=(5,), n=3, steps=2, rule=rule, itype="i32"))

for k in ("adam_bf16_step", "adam8bit_step", "adam8bit_codes"):
    T(k, R(shape=(300,)), R(shape=(3, 700), wd=0.1, resume=True, step=5), R(shape=(2048,), resume=True, step=7, decoupled=True, wd=0.05), R(shape=(1,)),
      R(shape=(257,), maximize=True))

for d in ("f32", "bf16"):
    T("circle_loss circle_loss_backward", R(n=[3, 4], items=[3]), R(n=[7, 33], items=[7], s=16.0), R(n=[5, 300], items=[5], s=32.0, m=0.4, pairs=True),
      R(n=[6, 9], items=[6], s=8.0, pairs=True, detach=False), R(n=[4, 5], items=[4], s=8.0, reduction="none"),
      R(n=[4, 5], items=[4], s=8.0, reduction="sum"), R(n=[3, 1], items=[3]), dtype=d)
    T("kto_loss kto_loss_backward", R(items=[5]), R(items=[300], kl=0.4, beta=0.5), R(items=[33], kl=-0.3, undesirable=1.5, reduction="sum"),
      R(items=[2, 9], desirable=0.5, reduction="none"), dtype=d)

P2 = [R(shape=(4, 7)), R(shape=(9, 40)), R(shape=(5, 6), reduction="none"), R(shape=(3, 5), reduction="sum")]
T("multilabel_margin_loss multilabel_margin_loss_backward", *P2)
SPATIAL = [R(shape=(3, 3, 3)), R(shape=(2, 5, 7), weight=True, ignore=True), R(shape=(3, 4, 2, 5), reduction="none"), R(shape=(4, 2, 33), reduction="sum"),
           R(shape=(6,)), R(shape=(5,), weight=True, reduction="none"), R(shape=(2, 3, 0), reduction="sum"), R(shape=(2, 40, 3, 3), weight=True)]
T("nll_loss nll_loss_backward", *SPATIAL)
T("nll_loss", R(shape=(3, 4, 5), bad_id=4, err="index_out_of_range"))
T("pad pad_backward", R(shape=(4,), pad=[-1, 1]), R(shape=(3, 5), pad=[2, -2]), R(shape=(2, 7, 6), pad=[-2, 3, 4, -1]), R(shape=(2, 5), pad=[-2, -1]),
  R(shape=(3, 4), pad=[1, -3, -1, 1]), mode="circular")
T("pad_backward", R(shape=(3, 6), pad=[-2, 4], acc=["dx"], tag="circular_accumulate"), mode="circular")
T("pad", R(shape=(6,), pad=[-2, 5], err="invalid", tag="circular_beyond_the_crop"), mode="circular")
T("meshgrid", R(sizes=[5], indexing="xy"))
POLES = [s - d for d in (3.171e-4, -3.171e-4, 1e-3, -0.02) for s in (-1.0, -2.0, -3.0, -7.0)]
T("digamma digamma_backward", R(shape=(40,), special=POLES))
T("layernorm_backward", R(rows=300, k=1))
T("groupnorm_backward", R(shape=(30, 4), G=4))
T("instancenorm_backward", R(shape=(30, 4, 1)))
T("batchnorm_backward", R(shape=(1, 300)))
T("rmsprop_step", R(tag="mu2"), R(tag="mu78"), R(tag="mu89"), shape=(300,), mu=0.9, steps=5)

STEPS = [R(shape=(7,)), R(shape=(3, 41), steps=6), R(shape=(1030,), steps=3), R(shape=(9,), steps=2, maximize=True), R(shape=(0,))]
DECAY = [R(shape=(40,), steps=4, wd=0.1), R(shape=(5,), found_inf=1.0, steps=2), R(shape=(70,), inv_scale=0.125, steps=3), R(shape=(64,), gdtype="bf16", steps=2)]
T("adadelta_update adamax_update amsgrad_update nadam_update radam_update asgd_update", *STEPS, *DECAY)
T("nadam_update radam_update", R(shape=(12,), steps=9, wd=0.1, decoupled=True, tag="decoupled"))
T("asgd_update", R(shape=(12,), steps=5, t0=2.0, tag="averaged"))
T("rprop_update", *STEPS, R(shape=(50,), steps=7, up=1.5, down=0.3, tag="other_factors"))
T("lion_update", *STEPS, R(shape=(40,), steps=4, wd=0.1, lr=0.01), R(shape=(33,), steps=3, resume=True))
T("ftrl_update", *STEPS, R(shape=(40,), steps=4, l1=0.5, l2=0.1))
T("proximal_gradient_update", *STEPS, R(shape=(40,), steps=4, l1=0.5, l2=0.1), R(shape=(40,), steps=3, prox="box", lo=-0.5, hi=0.75), lr=0.1)
T("unscale_grads", R(shapes=[(5,)]), R(shapes=[(5,), (3, 70)], scale=8.0), R(shapes=[(4,), (9,)], bad=float("inf")), R(shapes=[(4,), (9,)], scale=3.0, bad=float("nan")))
T("update_loss_scale", R(scale=65536.0, good=0, found=0.0), R(scale=65536.0, good=3, found=1.0), R(scale=1024.0, good=6, found=0.0, interval=7, tag="grows"),
  R(scale=1024.0, good=5, found=0.0, interval=7, tag="waits"))

for d in ("f32", "f16", "bf16"):
    T("add_relu add_sigmoid add_gelu", R(shape=(4, 33)), R(shape=(1031,)), R(shape=(0, 5)), dtype=d)
    T("max_abs min_abs max_abs_backward min_abs_backward log_var log_var_backward", R(shape=(3, 17), axes=[1]), R(shape=(4, 5, 6), axes=[0, 2], keepdim=True),
      R(shape=(33, 2), axes=[0]), dtype=d)
    T("sparse_2to4_compress sparse_2to4_prune", R(m=3, k=16), R(m=1, k=4), R(m=33, k=64), dtype=d)
    T("gemm_2to4", R(m=3, n=5, k=16), R(m=17, n=33, k=64), dtype=d)
T("log_var log_var_backward", R(shape=(3, 17), axes=[1], correction=0, eps=0.1, tag="other_eps"))
T("pdist_backward", R(n=5, k=7), R(n=9, k=3, p=1.0), R(n=6, k=4, p=3.0))
T("pairwise_distance_backward", R(shape=(5, 7)), R(shape=(3, 33), p=1.0, keepdim=True), R(shape=(2, 4), p=3.0))
T("scatter_mul scatter_mul_backward", R(rows=1, n=9, width=3, R=4), R(rows=2, n=30, width=5, R=7), R(rows=1, n=4, width=1, R=6))
