// What Python calls, as plain C: handles, pointers and sizes. No Python headers, so that one library serves every
// version. Ids and pages are int32, everything else is 64 bits wide.
#pragma once

#include <cstdint>

// Why a call was refused; no refused call has changed anything, except NO_MEMORY: afterwards all calls are BROKEN.
enum Refusal : int64_t { ENDED = -1, FOREIGN = -2, SHORT = -3, CLOSED = -4, NO_MEMORY = -5, BROKEN = -6 };

// What a cache shows of itself: counts at any time, the rest as its last call left it.
struct State {
    int64_t evictable, pinned, entries;  // pages, pages, nodes
    uint64_t lease;                      // the one that was returned
    const int32_t* out;                  // pages [n, components], then for `insert` remaps [n_remaps, 4]
    int64_t out_size;                    // room in `out`, not what is used
    int64_t n_remaps;                    // component, index, mine, theirs
    const uint64_t* event_numbers;       // events.h says how
    const char* event_names;
    int64_t n_event_numbers, n_event_names;
};

// Calls return a number of pages (`take_events`: 0), or a Refusal. `about`: see class Key.
extern "C" {
[[gnu::visibility("default")]] void* srtkit_radix_new(int64_t page_size, int64_t components, int64_t policy,
                                                       int64_t events, uint64_t hash_mask);
[[gnu::visibility("default")]] void srtkit_radix_free(void* cache);
[[gnu::visibility("default")]] const State* srtkit_radix_state(void* cache);
[[gnu::visibility("default")]] int64_t srtkit_radix_match(void* cache, const int32_t* ids, int64_t length,
                                                          const char* about);
[[gnu::visibility("default")]] int64_t srtkit_radix_peek(void* cache, const int32_t* ids, int64_t length,
                                                         const char* about);
// `pages` [n_pages, components]; `ids` has the tokens of `n_pages`.
[[gnu::visibility("default")]] int64_t srtkit_radix_insert(void* cache, uint64_t lease, const int32_t* ids,
                                                           const char* about, const int32_t* pages, int64_t n_pages);
[[gnu::visibility("default")]] int64_t srtkit_radix_release(void* cache, uint64_t lease);
[[gnu::visibility("default")]] int64_t srtkit_radix_evict(void* cache, int64_t n_pages);
[[gnu::visibility("default")]] int64_t srtkit_radix_reset(void* cache);
[[gnu::visibility("default")]] int64_t srtkit_radix_take_events(void* cache);
// Nodes of all caches of this process.
[[gnu::visibility("default")]] int64_t srtkit_radix_nodes_alive();
}
