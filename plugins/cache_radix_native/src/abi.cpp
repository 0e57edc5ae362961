// The plain C functions: no exception leaves them, and no call reaches a cache that was closed or ran out of memory.
#include "abi.h"

#include <exception>

#include "cache.h"

using radix::Cache;
using radix::Key;

namespace {

template <class Call>
int64_t guarded(void* handle, Call call) noexcept {
    auto* cache = static_cast<Cache*>(handle);
    if (cache == nullptr) return CLOSED;
    if (cache->broken) return BROKEN;
    try {
        const int64_t result = call(*cache);
        cache->publish();
        return result;
    } catch (const radix::Refused& refused) {
        return refused.why;
    } catch (const std::exception&) {  // bad_alloc, or a length that no vector has: the tree may be half changed
        cache->broken = true;
        return NO_MEMORY;
    }
}

}  // namespace

void* srtkit_radix_new(int64_t page_size, int64_t components, int64_t policy, int64_t events, uint64_t hash_mask) {
    try {
        return new Cache(page_size, components, static_cast<radix::Policy>(policy), events != 0, hash_mask);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void srtkit_radix_free(void* cache) { delete static_cast<Cache*>(cache); }

const State* srtkit_radix_state(void* cache) { return &static_cast<Cache*>(cache)->state; }

int64_t srtkit_radix_match(void* handle, const int32_t* ids, int64_t length, const char* about) {
    return guarded(handle, [&](Cache& cache) { return cache.match(Key(ids, length, about)); });
}

int64_t srtkit_radix_peek(void* handle, const int32_t* ids, int64_t length, const char* about) {
    return guarded(handle, [&](Cache& cache) { return cache.peek(Key(ids, length, about)); });
}

int64_t srtkit_radix_insert(void* handle, uint64_t lease, const int32_t* ids, const char* about, const int32_t* pages,
                            int64_t n_pages) {
    return guarded(handle, [&](Cache& cache) {
        return cache.insert(lease, Key(ids, n_pages * cache.page_size(), about), pages, n_pages);
    });
}

int64_t srtkit_radix_release(void* handle, uint64_t lease) {
    return guarded(handle, [&](Cache& cache) { return cache.release(lease); });
}

int64_t srtkit_radix_evict(void* handle, int64_t n_pages) {
    return guarded(handle, [&](Cache& cache) { return cache.evict(n_pages); });
}

int64_t srtkit_radix_reset(void* handle) {
    return guarded(handle, [](Cache& cache) { return cache.reset(); });
}

int64_t srtkit_radix_take_events(void* handle) {
    return guarded(handle, [](Cache& cache) { return cache.take_events(); });
}

int64_t srtkit_radix_nodes_alive() { return radix::Node::alive; }
