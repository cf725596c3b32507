"""Figures for spoken_digits_are_prepared_as_by_the_reference_script in tests/data.rs.

Usage: python fsdd_values.py RECORDINGS    (folder of {digit}_{speaker}_{take}.wav, 8 kHz, 16 bit)
Mean over groups of 6 samples, unit root mean square, cropped or zero padded to 512 steps; test
part: takes 0 to 4. NumPy 2.4, single precision.
"""

import os
import sys
import wave

import numpy as np

train, test = [], []
for name in sorted(os.listdir(sys.argv[1])):
    file = wave.open(os.path.join(sys.argv[1], name))
    x = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)
    x = x[: len(x) // 6 * 6].reshape(-1, 6).mean(1)
    x = x / (np.sqrt((x**2).mean()) + 1e-6)
    x = np.pad(x[:512], (0, max(0, 512 - len(x))))
    take = int(name[:-4].split("_")[2])
    (test if take < 5 else train).append(x)
train, test = np.array(train, np.float32), np.array(test, np.float32)
print("shapes", train.shape, test.shape)
print("test[0, :6]", test[0, :6])
print("train[2699, 100:104]", train[2699, 100:104])
for part in (train, test):
    print("sum |x|", np.abs(part.astype(np.float64)).sum())
