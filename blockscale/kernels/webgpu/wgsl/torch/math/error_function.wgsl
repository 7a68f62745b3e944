// erf and 1 - erf, of x >= 0 by its bits. Below 1, erf is x times a polynomial of x^2; above, the
// logarithm of the complement is one of x (least squares in Chebyshev's points, errors 1e-9).
// needs: torch/math/float_of

// erf(x) / x of 0 <= x < 1.
fn odd(x: u32) -> f32 {
    let square = float_of(x) * float_of(x);
    var sum = 7.889122207416221e-05;
    sum = sum * square - 0.0008020842215046287;
    sum = sum * square + 0.005189535208046436;
    sum = sum * square - 0.026854444295167923;
    sum = sum * square + 0.11283600330352783;
    sum = sum * square - 0.3761262595653534;
    return sum * square + 1.1283791065216064;
}

fn complement(x: u32) -> f32 {
    let value = float_of(x);
    if (x < 0x3f800000u) {
        return 1.0 - value * odd(x);
    }
    if (x > 0x41200000u) { // 10
        return 0.0;
    }
    var sum = 2.1686782929464243e-05;
    sum = sum * value - 0.00044133554911240935;
    sum = sum * value + 0.004204557742923498;
    sum = sum * value - 0.02520824410021305;
    sum = sum * value + 0.1084185540676117;
    sum = sum * value + 0.6332198977470398;
    sum = sum * value + 1.1295784711837769;
    return exp(-(sum * value - 0.0001880378695204854));
}
