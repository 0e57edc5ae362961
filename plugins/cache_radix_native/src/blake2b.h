// BLAKE2b (RFC 7693) without a key and with digests of 8 bytes: Python's hashlib.blake2b(data, digest_size=8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace radix {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are hashed as they lie in memory");

class Blake2b {
  public:
    void update(const void* data, size_t size) {
        const auto* bytes = static_cast<const uint8_t*>(data);
        while (size > 0) {
            if (used_ == block_.size()) compress(false);  // the last block waits for digest()
            const size_t taken = size < block_.size() - used_ ? size : block_.size() - used_;
            std::memcpy(block_.data() + used_, bytes, taken);
            used_ += taken;
            bytes += taken;
            size -= taken;
        }
    }

    // The first 8 bytes, as a little-endian number; ends the hash.
    uint64_t digest() {
        std::memset(block_.data() + used_, 0, block_.size() - used_);
        compress(true);
        return state_[0];
    }

  private:
    using Words = std::array<uint64_t, 16>;

    static constexpr std::array<uint64_t, 8> IV = {
        0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
        0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
    };
    // Which words of the block each round mixes, in order.
    static constexpr uint8_t SIGMA[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    };

    static uint64_t rotated(uint64_t word, int by) { return word >> by | word << (64 - by); }

    static void mix(Words& v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
        v[a] += v[b] + x;
        v[d] = rotated(v[d] ^ v[a], 32);
        v[c] += v[d];
        v[b] = rotated(v[b] ^ v[c], 24);
        v[a] += v[b] + y;
        v[d] = rotated(v[d] ^ v[a], 16);
        v[c] += v[d];
        v[b] = rotated(v[b] ^ v[c], 63);
    }

    void compress(bool last) {
        total_ += used_;
        used_ = 0;
        Words m, v;
        std::memcpy(m.data(), block_.data(), block_.size());
        for (int i = 0; i < 8; ++i) v[i] = state_[i], v[i + 8] = IV[i];
        v[12] ^= total_;
        if (last) v[14] = ~v[14];
        for (int round = 0; round < 12; ++round) {
            const uint8_t* s = SIGMA[round % 10];
            for (int i = 0; i < 4; ++i) mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
            for (int i = 0; i < 4; ++i) {
                mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
            }
        }
        for (int i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
    }

    // Parameters: digests of 8 bytes, no key, fan-out and depth 1.
    std::array<uint64_t, 8> state_ = {IV[0] ^ 0x01010008, IV[1], IV[2], IV[3], IV[4], IV[5], IV[6], IV[7]};
    std::array<uint8_t, 128> block_{};
    size_t used_ = 0;
    uint64_t total_ = 0;
};

}  // namespace radix
