/** Samples of one rate as samples of another, piece by piece: a sinc of both sides so many lobes wide under
 * a cosine, cut off at the lower of both rates' ends. A constant stays what it is. */
class Resampler {
  constructor(from, to) {
    this.step = from / to;
    // A little below the end, where the filter falls.
    this.cut = from === to ? 1 : .94 * Math.min(1, to / from);
    this.half = Math.ceil(24 / this.cut);
    this.held = new Float32Array(2 * this.half);
    // The place of the next sample in what is held; before the first ones there was silence.
    this.at = this.half;
  }

  /** What can be given so far; the last samples wait for those behind them. */
  push(samples) {
    const held = new Float32Array(this.held.length + samples.length), made = [];
    held.set(this.held);
    held.set(samples, this.held.length);
    for (; this.at + this.half < held.length; this.at += this.step) made.push(this.sample(held));
    const used = Math.max(0, Math.floor(this.at) - this.half);
    this.held = held.slice(used);
    this.at -= used;
    return Float32Array.from(made);
  }
  sample(held) {
    let sum = 0, all = 0;
    for (let i = Math.ceil(this.at - this.half); i <= this.at + this.half; i += 1) {
      const x = i - this.at, turn = Math.PI * this.cut * x;
      const weight = (x === 0 ? 1 : Math.sin(turn) / turn) * (1 + Math.cos(Math.PI * x / this.half));
      sum += weight * (held[i] ?? 0);
      all += weight;
    }
    return sum / all;
  }
}
if (typeof module !== "undefined") module.exports = Resampler;
