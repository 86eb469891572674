"""Catalogue of every table and figure of the papers, with its claim in our words and the time that
it takes to make it.

The first line of an item has its name on the command line, the paper's caption number, and the
seconds that it takes on one core, at scale small and, if it does not train, at full. They are
rounded processor seconds of a first run, before any fit is stored. The claim is indented under it.
An item that cannot be made here has its state in place of the seconds, and the reason after the
claim.
"""

ITEMS = """
denisov-figure-1 | Figure 1 | 3 3
    The optimal mechanism has less error than both estimators of Honaker's tree, without the
    tree's ups and downs. On momentum, the one optimised for momentum has the least.
denisov-figure-2 | Figure 2 | 6700
    At every epsilon the mechanism optimised for momentum is the most accurate, then the one for
    prefix sums, then Honaker's tree with the full and with the online decoder.
denisov-figure-3 | Figure 3 | 2400
    Learning-rate decay and cool-down help, more so if the mechanism is optimised for them; more
    clients help again. Together they close two thirds of the gap to training without noise.
denisov-figure-4 | Figure 4 | 40 2600
    The fixed point finds the optimum faster than gradient and Newton directions, in some cases
    by up to two orders of magnitude.
denisov-figure-5 | Figure 5 | 5 5
    The optimal B has a heavy diagonal, with the largest entry of both matrices, 2.36; off it
    the entries have an order.
denisov-figure-6 | Figure 6 | 1000
    A mechanism optimised for momentum and decay is behind in the body of training and ahead at
    its end.
denisov-table-1 | Table 1 | not reproducible
    The factorisations with which one algorithm gives four mechanisms.
    Why: It defines terms and has no result.
denisov-table-2 | Table 2 | 2 250
    The optimal factorisation has less error than Honaker's tree, and a low-rank one little
    more.
denisov-table-3 | Table 3 | not reproducible
    The grids that were searched for Figure 2.
    Why: It is the grid of Figure 2, which experiments/papers/stackoverflow_sizes.py has as
    data.
denisov-table-4 | Table 4 | 6700
    The best settings of Table 3's grid: client rates, momentum and rate / (1 - momentum) fall
    with noise.
multi-epoch-figure-1 | Figure 1 | 2400
    The optimum for all epochs is the best, then the FFT mechanism; from epsilon 4 up both are
    above sampled DP-SGD.
multi-epoch-figure-2 | Figure 2 | 40 40
    For six epochs the columns of C for two rounds of one client are orthogonal, and others are
    not.
multi-epoch-figure-3 | Figure 3 | 3800
    At every epsilon the optimum for six epochs is ahead of all that can be run, and the optimum
    for one epoch, used for six, ahead of the baselines. At epsilon 8.8 the former is within 2%
    of no noise, and above the baselines at epsilon 17.7.
multi-epoch-figure-4 | Figure 4 | 10 10
    At equal privacy mechanisms have different total variances; the optimum for 20 epochs has
    the least.
multi-epoch-figure-5 | Figure 5 | 60 60
    With momentum and cool-down the optimum for six epochs has the least total variance.
multi-epoch-figure-6 | Figure 6 | 10 10
    The optimal decoder of Honaker's tree beats the online one at every number of stamps (here
    in loss; the next item trains).
multi-epoch-figure-6-trained | Figure 6, trained | 1900
    Trained, the optimal decoder of Honaker's tree is above the online one, and the optimum for
    all epochs above both.
multi-epoch-figure-7 | Figure 7 | 900
    Honaker's tree is best with a number of stamps in the middle, the one with the least loss.
multi-epoch-figure-8 | Figure 8 | 2800
    Accuracy rises as the epochs of a factorisation approach the epochs of training.
multi-epoch-figure-9 | Figure 9 | 2800
    Figure 1, larger, with the plain FFT between Honaker's tree and the FFT with the optimal
    decoder.
multi-epoch-figure-10 | Figure 10 | 1400
    Without noise more clients a round help, and larger rates do with little or no noise.
    Cool-down helps, most at small epsilon, and momentum and cool-down help more inside the
    mechanism.
multi-epoch-figure-11 | Figure 11 | 3800
    With more noise and with larger rates, more huge updates are zeroed.
multi-epoch-figure-12 | Figure 12 | 3800
    Figure 3 with all learning rates: matrix factorisation tolerates larger ones, but at epsilon
    2 lower ones are better for all.
multi-epoch-figure-13 | Figure 13 | 40 40
    Figure 2, larger.
multi-epoch-figure-14 | Figure 14 | 5 5
    The noise of the FFT mechanism is within a factor of 1.2 of the lower bound for all
    mechanisms, and its analytic error about 6 times the bound.
multi-epoch-table-1 | Table 1 | 1 20
    The optimum for 20 epochs has the least loss, within 0.2% of the lower bound; stamps help;
    of fast mechanisms the stamped FFT with the optimal decoder is the best.
multi-epoch-table-2 | Table 2 | 200
    Zeroing huge updates prevents most divergences (fedmf trains the runs with zeroing).
multi-epoch-table-3 | Table 3 | 5 5
    Noise multipliers of three targets, without and with sampling.
multi-epoch-table-4 | Table 4 | 3800
    Accuracies of DP-SGDM and DP-GDM, of which DP-GDM has the higher ones; both rise with
    epsilon (with those of Table 5 in one CSV).
multi-epoch-table-5 | Table 5 | 3800
    Accuracies of the factorisations, which rise with epsilon: the optimum for six epochs has
    the highest, then the optimum for one epoch, used for six.
multi-epoch-table-6 | Table 6 | 5 5
    Nonnegative products of a client's columns cost nothing in error for prefix sums, and next
    to nothing for momentum.
banded-app-k-1 | App. K.1 | 1 1
    The production model's rho of zCDP as epsilon at delta 1e-10.
banded-figure-1 | Figure 1 | 1100
    With sampling banded matrices beat DP-SGD and the multi-epoch optimum at epsilon 1 to 8 (b;
    a is Figure 10).
banded-figure-2 | Figure 2 | 1 1
    Round t samples a random subset of one of b partitions of the clients, in turn.
banded-figure-3 | Figure 3 | 1 1
    With b bands the participations of one client touch different rows of C x.
banded-figure-4 | Figure 4 | 35 190
    DP-SGD and multi-epoch MF each have less error in some settings. BandMF is never worse than
    DP-SGD (by construction), and better than both down to epsilon 1/2.
banded-figure-5 | Figure 5 | 1700
    For phones banded matrices are the most accurate, and the multi-epoch optimum is above the
    mechanisms before it (a); they are above Online TreeAgg in production (b, whose data are not
    public).
banded-figure-6 | Figure 6 | 5 5
    Eight factorisations of the prefix sums, and the matrices of their noise; those of EN have
    columns of equal norms.
banded-figure-7 | Figure 7 | 1 1
    The full decoder of a binary tree is its pseudo-inverse, which is dense.
banded-figure-8 | Figure 8 | 1 1
    Figure 3, larger.
banded-figure-9 | Figure 9 | 30 30
    For CIFAR-10 BandMF is never worse than DP-SGD (by construction) and often better, and
    better than multi-epoch MF up to epsilon 5.
banded-figure-10 | Figure 10 | 1100
    With the best number of bands for each epsilon, banded matrices are above sampled DP-SGD,
    and up to epsilon 5 above the optimum for all epochs, which is better from there on (also
    Figure 1 a).
banded-figure-11 | Figure 11 | 30 30
    The logarithm of the best server rate is linear in that of the error of the sums, and not of
    that of single gradients.
banded-figure-12 | Figure 12 | 1700
    Convergence of the best runs of Figure 5 (a), where banded matrices end above the trees, the
    optimum for one epoch and DP-SGD.
banded-figure-13 | Figure 13 | not reproducible
    Multiplying by a banded matrix, or by its inverse, costs its bands a row.
    Why: It is pseudocode: `make bench-noise` measures what it costs.
banded-sec-6 | Sec. 6 | 5 90
    With sampling 9, 18, 32, 64 bands suit epsilon 1, 2, 4, 8 best, and the dense optimum 16.
banded-table-1 | Table 1 | not reproducible
    Notation.
    Why: It defines terms and has no result.
banded-table-2 | Table 2 | 1 40
    Banded matrices are nearly optimal in a fixed order, and the best for clients that only keep
    a separation.
banded-table-3 | Table 3 | 2 150
    The best number of bands falls as epsilon falls or epochs rise.
banded-table-4 | Table 4 | 2 2
    Noise multipliers for clients 342 rounds apart (its accuracies need training).
banded-table-5 | Table 5 | 20 20
    Noise multipliers with sampling for the tuned bands (its accuracies need training).
banded-table-6 | Table 6 | 1 20
    The best server rate follows from the error of sums and the noise alone (accuracies as
    printed).
banded-table-7 | Table 7 | 15 20
    With sampling the same rule gives the best server rates (accuracies as printed).
slides-approximation | Approximation quality | 5 5
    Rational functions of degree d come within 3 exp(-sqrt d) of the square root; polynomials
    need far more.
slides-finite-time | Finite-time rates | 40 270
    With clipping and the best learning rate the privacy error falls as 1 / T with independent
    noise and 1 / T² with correlated.
slides-learning-rate | Learning rate dependence | 15 270
    Noisy SGD's error goes as eta, nu-Noisy-FTRL's as eta² log²(1 / eta), damped anti-PGD's as
    eta^1.5.
slides-linear-regression | Linear regression | 20 450
    Noisy SGD's error grows with the dimension, that of nu-Noisy-FTRL with the effective
    dimension; no noise is below the lower bound.
slides-max-error | Max error | 5 5
    The optimal Toeplitz mechanism has max error log(n) / pi + constant, independent noise
    sqrt(n); buffers are nearly optimal, and a constant number of bands is not.
slides-mean-estimation | Mean estimation | 2 40
    The stationary error is of order eta with independent noise and eta² log²(1 / eta) with the
    best, which is nu = eta.
slides-noise-time | Noise generation time | 5 5
    The noise of iteration t takes the optimum a time that grows as t, bands and buffers a
    constant time.
slides-nu-dp-ftrl-on-cifar-10 | nu-DP-FTRL, CIFAR-10 | 1400
    At every epsilon nu-DP-FTRL is as accurate as the optimum for all epochs, and more than
    independent noise.
slides-nu-dp-ftrl-on-stackoverflow | nu-DP-FTRL, StackOverflow | 1000
    At every epsilon nu-DP-FTRL is as accurate as the optimum for all epochs, and more than
    independent noise.
slides-production-model | Production model | not reproducible
    In a production keyboard, BLT noise is as good as that of the dense optimum.
    Why: Its data are a company's and not public.
fedmf-schemes | Sampling schemes | 100 1600
    Random allocation needs less noise than Poisson sampling at every epsilon.
fedmf-blt | BLT and TreeAgg | 4 100
    Under min-sep participation BLT has less error than TreeAgg and nearly that of banded
    matrices, and it is robust to other min-seps and numbers of rounds than those that it is
    optimised for (McMahan, Xu and Zhang 2024).
fedmf-blt-trained | BLT and TreeAgg, trained | 1000
    Trained on StackOverflow, BLT is more accurate than TreeAgg and as accurate as banded
    matrices (McMahan, Xu and Zhang 2024).
"""
