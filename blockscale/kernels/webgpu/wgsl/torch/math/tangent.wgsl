// tanh. Below 0.6 a polynomial (least squares in Chebyshev's points, error 5e-10), because
// 1 - 2 / (exp(2 x) + 1) has few digits left there.
// needs: torch/math/float_of
fn tangent(x: u32) -> f32 {
    let size = x & 0x7fffffffu;
    let sign = select(1.0, -1.0, x >> 31u == 1u);
    if (size > 0x41200000u) { // 10
        return sign;
    }
    let value = float_of(x);
    let square = value * value;
    if (size < 0x3f19999au) {
        var sum = 0.0023325232323259115;
        sum = sum * square - 0.00838012620806694;
        sum = sum * square + 0.0217804703861475;
        sum = sum * square - 0.053960785269737244;
        sum = sum * square + 0.13333311676979065;
        sum = sum * square - 0.3333333432674408;
        return value + value * (square * sum);
    }
    return sign * (1.0 - 2.0 / (exp(2.0 * abs(value)) + 1.0));
}
