// Files of the page's worker, piece by piece: those that were given stay where they are, the new one is
// made of blobs, which a browser keeps on disk where they are many.
const WINDOW = 4 << 20, PIECE = 16 << 20, HELD = 4, NEW = 0xffffffff;

/** Bytes of a blob, at once: only a worker can. */
const bytesOf = (blob) => new Uint8Array(new FileReaderSync().readAsArrayBuffer(blob));

/** Small reads one after the other are one read of the blob. */
class Given {
  constructor(blob) { Object.assign(this, { blob, from: 0, held: new Uint8Array(0) }); }

  read(at, into) {
    const end = at + into.length;
    if (into.length >= WINDOW) return into.set(bytesOf(this.blob.slice(at, end)));
    if (at < this.from || end > this.from + this.held.length) {
      this.held = bytesOf(this.blob.slice(at, at + WINDOW));
      this.from = at;
    }
    into.set(this.held.subarray(at - this.from, end - this.from));
  }
}

/** Pieces of equal length; those written last are in memory. */
class New {
  constructor() { Object.assign(this, { pieces: [], held: new Map(), length: 0 }); }

  piece(index) {
    let own = this.held.get(index);
    if (!own) {
      own = new Uint8Array(PIECE);
      if (this.pieces[index]) own.set(bytesOf(this.pieces[index]));
      this.held.set(index, own);
      if (this.held.size > HELD) this.settle(this.held.keys().next().value);
    }
    return own;
  }
  settle(index) {
    this.pieces[index] = new Blob([this.held.get(index)]);
    this.held.delete(index);
  }
  /** Calls `each` with every piece that some bytes are in, and where. */
  over(at, length, each) {
    for (let done = 0; done < length;) {
      const index = Math.floor((at + done) / PIECE), from = (at + done) % PIECE, count = Math.min(PIECE - from, length - done);
      each(this.piece(index).subarray(from, from + count), done, done + count);
      done += count;
    }
  }
  write(at, bytes) {
    this.over(at, bytes.length, (place, from, to) => place.set(bytes.subarray(from, to)));
    this.length = Math.max(this.length, at + bytes.length);
  }
  read(at, into) {
    this.over(at, into.length, (place, from, to) => into.set(place.subarray(0, to - from), from));
  }
  blob() {
    for (const index of [...this.held.keys()]) this.settle(index);
    return new Blob(this.pieces).slice(0, this.length);
  }
}

class Files {
  give(blobs) { this.given = blobs.map((blob) => new Given(blob)); }
  begin() { this.new = new New(); }
  read(file, at, into) { (file === NEW ? this.new : this.given[file]).read(at, into); }
  write(at, bytes) { this.new.write(at, bytes); }
}
