// exp and tanh over sixteen lanes; ref/scalar.h explains them. Included after simd.h, inside the
// namespace.
namespace {

BATON_INLINE V exp16(V x) {
  const V magic = set1(0x1.8p23F);
  const V shifted = fma(x, set1(0x1.715476p+0F), magic);
  const V n = sub(shifted, magic);
  V r = fma(n, set1(-0x1.62e430p-1F), x);
  r = fma(n, set1(0x1.05c610p-29F), r);
  V p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  p = add(fma(p, mul(r, r), r), set1(1.0F));
  V y = scale_by_power(p, shifted);
  y = select_less(set1(88.72283F), x, set1(__builtin_inff()), y);
  return select_less(x, set1(-87.33654F), zero(), y);
}

BATON_INLINE V tanh16(V x) {
  const V z = mul(x, x);
  V p = set1(-5.70498872745e-3F);
  p = fma(p, z, set1(2.06390887954e-2F));
  p = fma(p, z, set1(-5.37397155531e-2F));
  p = fma(p, z, set1(1.33314422036e-1F));
  p = fma(p, z, set1(-3.33332819422e-1F));
  const V near = fma(mul(p, z), x, x);
  const V size = abs(x);
  const V tail = div(set1(2.0F), add(exp16(add(size, size)), set1(1.0F)));
  const V far = sub(set1(1.0F), tail);
  const V large = select_less(x, zero(), negate(far), far);
  return select_less(size, set1(0.625F), near, large);
}

}  // namespace
