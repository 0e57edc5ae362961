// What Python sees: the type `Cache` of the module `_radix`. No exception of C++ leaves, and no call reaches a cache
// that was closed or ran out of memory.
//
// Only Python's limited API is used, so one library serves every version from 3.11 on. Arrays come in as buffers, which
// are read during the call; pages go out as bytes of int32 [n, components].
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cache.h"

using radix::Cache;
using radix::Key;

namespace {

// Thrown where Python's own error is set.
struct Raised {};

[[noreturn]] void refuse(const char* why) {
    PyErr_SetString(PyExc_AssertionError, why);
    throw Raised();
}

PyObject* given(PyObject* made) {
    if (made == nullptr) throw Raised();
    return made;
}

// A library that was made for another cache.py must refuse its calls, not read beyond their arguments.
void expect(Py_ssize_t wanted, Py_ssize_t n) {
    if (n == wanted) return;
    PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd: compile the library again", n, wanted);
    throw Raised();
}

int64_t number(PyObject* object) {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw Raised();
    return value;
}

// The first `n` int32 numbers of a buffer.
class Ints {
  public:
    Ints(PyObject* object, int64_t n) {
        if (PyObject_GetBuffer(object, &buffer_, PyBUF_SIMPLE) != 0) {  // they do not lie in a row
            PyErr_Clear();
            PyObject* copy = given(PyObject_CallMethod(object, "copy", nullptr));
            const int refused = PyObject_GetBuffer(copy, &buffer_, PyBUF_SIMPLE);
            Py_DECREF(copy);  // the buffer keeps it
            if (refused) throw Raised();
        }
        if (buffer_.itemsize != sizeof(int32_t) || buffer_.len < n * static_cast<int64_t>(sizeof(int32_t))) {
            PyBuffer_Release(&buffer_);
            refuse("ids or pages are fewer than the call says, or not int32");
        }
    }
    ~Ints() { PyBuffer_Release(&buffer_); }
    Ints(const Ints&) = delete;
    Ints& operator=(const Ints&) = delete;

    const int32_t* data() const { return static_cast<const int32_t*>(buffer_.buf); }

  private:
    Py_buffer buffer_;
};

const char* about_of(PyObject* object) { return object == Py_None ? nullptr : PyBytes_AsString(object); }

struct Object {
    PyObject_HEAD
    Cache* cache;
};

const char* text(radix::Refusal why) {
    switch (why) {
        case radix::Refusal::ENDED: return "this lease has ended already";
        case radix::Refusal::FOREIGN: return "this lease is of another cache";
        case radix::Refusal::SHORT: return "insert ends before its lease";
    }
    return "";
}

template <class Call>
PyObject* guarded(PyObject* self, Call call) noexcept {
    Cache* cache = reinterpret_cast<Object*>(self)->cache;
    const char* gone = cache == nullptr ? "this cache is closed" : "this cache ran out of memory before";
    if (cache == nullptr || cache->broken) {
        PyErr_SetString(PyExc_AssertionError, gone);
        return nullptr;
    }
    try {
        return call(*cache);
    } catch (const Raised&) {  // Python's memory may have ended after the tree has changed: a lease that nobody has
        cache->broken = PyErr_ExceptionMatches(PyExc_MemoryError) != 0;
    } catch (const radix::Refused& refused) {
        PyErr_SetString(PyExc_AssertionError, text(refused.why));
    } catch (const std::exception&) {  // bad_alloc, or a length that no vector has: the tree may be half changed
        cache->broken = true;
        PyErr_NoMemory();
    }
    return nullptr;
}

PyObject* bytes(const void* data, size_t size) {
    return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size));
}

PyObject* pages_of(const Cache& cache, int64_t n) { return bytes(cache.out(), 4 * n * cache.components()); }

// Takes over the objects, of which any may be null: then it is.
template <class... Objects>
PyObject* tuple(Objects... objects) {
    PyObject* made = PyTuple_New(sizeof...(objects));
    Py_ssize_t at = 0;
    bool whole = made != nullptr;
    for (PyObject* one : {objects...}) {
        whole = whole && one != nullptr;
        if (made == nullptr) {
            Py_XDECREF(one);
        } else {
            PyTuple_SetItem(made, at++, one);
        }
    }
    if (whole) return made;
    Py_XDECREF(made);
    throw Raised();
}

// match(ids, length, about) → (pages, bytes of them, lease). `about`: see class Key, or None.
PyObject* match(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
    return guarded(self, [&](Cache& cache) {
        expect(3, n_args);
        const int64_t length = number(args[1]);
        const Ints ids(args[0], length);
        const int64_t n = cache.match(Key(ids.data(), length, about_of(args[2])));
        return tuple(PyLong_FromLongLong(n), pages_of(cache, n), PyLong_FromUnsignedLongLong(cache.lease()));
    });
}

// peek(ids, length, about) → pages.
PyObject* peek(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
    return guarded(self, [&](Cache& cache) {
        expect(3, n_args);
        const int64_t length = number(args[1]);
        const Ints ids(args[0], length);
        return PyLong_FromLongLong(cache.peek(Key(ids.data(), length, about_of(args[2]))));
    });
}

uint64_t lease_of(PyObject* object) {
    const uint64_t lease = PyLong_Check(object) ? PyLong_AsUnsignedLongLong(object) : 0;
    PyErr_Clear();  // one beyond 64 bits is nobody's, as 0 is
    return lease;
}

// insert(lease, ids, about, pages [n, components], n) → (pages, bytes of them, lease, remaps [m, 4] as bytes).
PyObject* insert(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
    return guarded(self, [&](Cache& cache) {
        expect(5, n_args);
        const int64_t n_pages = number(args[4]), length = n_pages * cache.page_size();
        const Ints ids(args[1], length), mine(args[3], n_pages * cache.components());
        const Key key(ids.data(), length, about_of(args[2]));
        const int64_t n = cache.insert(lease_of(args[0]), key, mine.data(), n_pages);
        PyObject* remaps = bytes(cache.out() + n * cache.components(), 16 * cache.n_remaps());
        PyObject* lease = PyLong_FromUnsignedLongLong(cache.lease());
        return tuple(PyLong_FromLongLong(n), pages_of(cache, n), lease, remaps);
    });
}

// release(lease) → bytes of pages.
PyObject* release(PyObject* self, PyObject* lease) {
    return guarded(self, [&](Cache& cache) { return pages_of(cache, cache.release(lease_of(lease))); });
}

// evict(n) → bytes of pages.
PyObject* evict(PyObject* self, PyObject* n) {
    return guarded(self, [&](Cache& cache) { return pages_of(cache, cache.evict(number(n))); });
}

// reset() → bytes of pages.
PyObject* reset(PyObject* self, PyObject*) {
    return guarded(self, [](Cache& cache) { return pages_of(cache, cache.reset()); });
}

// take_events() → (numbers as bytes of uint64, namespaces); events.h says how they are read.
PyObject* take_events(PyObject* self, PyObject*) {
    return guarded(self, [](Cache& cache) {
        const radix::EventLog events = cache.take_events();
        PyObject* numbers = bytes(events.numbers().data(), 8 * events.numbers().size());
        return tuple(numbers, bytes(events.names().data(), events.names().size()));
    });
}

const std::string& namespace_of(const radix::Node& node) {
    const radix::Node* root = &node;
    while (root->parent != nullptr) root = root->parent;
    return *root->name;
}

// outline(limit, tokens) → list of (parent, length, ids as bytes, bytes of pages, namespace, hits, pins).
PyObject* outline(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
    return guarded(self, [&](Cache& cache) {
        expect(2, n_args);
        const int64_t tokens = number(args[1]);
        const std::vector<radix::Shown> found = cache.outline(number(args[0]));
        PyObject* list = given(PyList_New(0));
        for (const radix::Shown& one : found) {
            const radix::View run = one.node->run.view();
            const std::vector<int32_t>& pages = one.node->pages;
            const std::string& name = namespace_of(*one.node);
            PyObject* shown = Py_BuildValue(
                "LLNNNLL", one.parent, one.length, bytes(run.ids, 4 * std::min(tokens, run.length)),
                bytes(pages.data(), 4 * pages.size()), bytes(name.data(), name.size()), one.node->hits, one.pins);
            if (shown == nullptr || PyList_Append(list, shown) != 0) {
                Py_XDECREF(shown);
                Py_DECREF(list);
                throw Raised();
            }
            Py_DECREF(shown);
        }
        return list;
    });
}

// figures() → (evictable pages, pinned pages, nodes); zeros after `close`.
PyObject* figures(PyObject* self, PyObject*) {
    const Cache* cache = reinterpret_cast<Object*>(self)->cache;
    const auto counts = cache == nullptr ? radix::Figures{} : cache->figures();
    return Py_BuildValue("LLL", counts.evictable, counts.pinned, counts.nodes);
}

// evictable() → pages; 0 after `close`.
PyObject* evictable(PyObject* self, PyObject*) {
    const Cache* cache = reinterpret_cast<Object*>(self)->cache;
    return PyLong_FromLongLong(cache == nullptr ? 0 : cache->figures().evictable);
}

// close(): frees the tree. Idempotent.
PyObject* close(PyObject* self, PyObject*) {
    delete std::exchange(reinterpret_cast<Object*>(self)->cache, nullptr);
    Py_RETURN_NONE;
}

// Cache(page_size, components, policy, events, hash_mask): see class Cache.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
    long long page_size, components;
    unsigned long long hash_mask;
    int policy, events;
    if (!PyArg_ParseTuple(args, "LLipK", &page_size, &components, &policy, &events, &hash_mask)) return nullptr;
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* self = allocate(type, 0);
    if (self == nullptr) return nullptr;
    try {
        const auto which = static_cast<radix::Policy>(policy);
        reinterpret_cast<Object*>(self)->cache = new Cache(page_size, components, which, events != 0, hash_mask);
    } catch (const std::exception&) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

void free_object(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Object*>(self)->cache;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject* nodes_alive(PyObject*, PyObject*) { return PyLong_FromLongLong(radix::Node::alive); }

template <class Function>
PyCFunction plain(Function function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef METHODS[] = {
    {"match", plain(match), METH_FASTCALL, nullptr},
    {"peek", plain(peek), METH_FASTCALL, nullptr},
    {"insert", plain(insert), METH_FASTCALL, nullptr},
    {"release", release, METH_O, nullptr},
    {"evict", evict, METH_O, nullptr},
    {"reset", reset, METH_NOARGS, nullptr},
    {"take_events", take_events, METH_NOARGS, nullptr},
    {"outline", plain(outline), METH_FASTCALL, nullptr},
    {"figures", figures, METH_NOARGS, nullptr},
    {"evictable", evictable, METH_NOARGS, nullptr},
    {"close", close, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_object)},
    {Py_tp_methods, METHODS},
    {0, nullptr},
};

PyType_Spec TYPE = {"srtkit_plugin_cache_radix_native._radix.Cache", sizeof(Object), 0, Py_TPFLAGS_DEFAULT, SLOTS};

PyMethodDef FUNCTIONS[] = {
    {"nodes_alive", nodes_alive, METH_NOARGS, "Nodes of all caches of this process."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_radix", nullptr, -1, FUNCTIONS, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__radix() {
    PyObject* module = PyModule_Create(&MODULE);
    PyObject* type = module == nullptr ? nullptr : PyType_FromSpec(&TYPE);
    if (type == nullptr || PyModule_AddObject(module, "Cache", type) != 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return nullptr;
    }
    return module;
}
