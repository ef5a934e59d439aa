/* Many sockets in one call: what is readable is read, and what is to be sent is sent.
 *
 * `calls.py` beside this file does the same in Python, and says what each call means; it is the
 * oracle of this one (tests/server/test_socket_calls.py). Nothing here knows MQTT.
 *
 * A socket is known by its descriptor and a generation, never by an address in memory: an event of
 * a descriptor that was closed, or taken by another connection since, finds nothing. The
 * interpreter's lock is kept throughout: no call here waits.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_EVENTS 256
#define MOST_DESCRIPTORS (1 << 30)
#define MOST_PARTS 1024         /* of one writev: IOV_MAX of Linux */
#define READ_BYTES (1 << 18)    /* of one socket in a call */
#define GATHERED_BYTES (1 << 20) /* of all sockets; the rest is read by the next call */
#define JOINED_BYTES (1 << 16)  /* what is smaller is copied together, else sent from its place */
#define APART_BYTES (1 << 12)   /* so large a part is sent from its place in any case */
#define LARGE_READ (1 << 12)    /* after so large a read, the next one goes where it stays */
#define UV_IDLE 6               /* of `uv_handle_type` of libuv 1 */
#define UV_PREPARE 9
#define HANDLE_HEAD 16          /* before each of our handles: whose it is */
#define MOST_ACCEPTED 16        /* of one listening socket in a call: connected clients wait */

typedef struct {
    PyObject *owner; /* NULL: nobody has this descriptor */
    uint32_t generation; /* never 0: events of the loop outside have that */
    uint32_t events : 31; /* what epoll watches; 0: it is not registered */
    uint32_t accepts : 1; /* a listening socket */
    uint32_t last_size; /* of what was read last */
} Slot;

/* The beginning of `uv_loop_t` of libuv 1, whose layout is part of its binary interface. */
typedef struct {
    void *data;
    unsigned int active_handles;
    void *handles[2];
    void *active_requests;
    void *internal;
    unsigned int stop_flag;
    unsigned long flags;
    int backend;
    void *pending[2];
    void *watchers[2]; /* what epoll is not told of yet; of a list that is empty, its own address */
} UvLoop;

/* Two handles of libuv: one calls back before each wait of the loop, and while the other is active
   the loop does not wait. Their `data` stays NULL: what is there, uvloop takes for an object. */
typedef struct {
    struct SocketSet *set; /* NULL: it is closed */
    void *before, *busy;
    int closing; /* so many of the two */
} Follower;

typedef struct SocketSet {
    PyObject_HEAD
    int epoll;
    int count; /* of `slots` */
    uint32_t generation;
    Slot *slots; /* by descriptor */
    char *buffer;
    UvLoop *loop; /* the event loop outside; NULL: it waits for this set, if it is told to */
    Follower *follower;
    PyObject *on_found; /* gets what `gather` would return */
    int is_outside_ready;
} SocketSet;

static struct { /* of the libuv that uvloop has in it */
    unsigned int (*version)(void);
    int (*backend)(const void *);
    int (*timeout)(const void *);
    void (*update_time)(void *);
    size_t (*size)(int);
    int (*prepare_init)(void *, void *);
    int (*prepare_start)(void *, void (*)(void *));
    int (*idle_init)(void *, void *);
    int (*idle_start)(void *, void (*)(void *));
    int (*idle_stop)(void *);
    void (*unref)(void *);
    void (*close)(void *, void (*)(void *));
} uv;

static char joined[JOINED_BYTES];

/* Return a descriptor, or -1 and an exception. */
static int
as_descriptor(PyObject *value)
{
    if (!PyLong_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "a descriptor is a whole number");
        return -1;
    }
    long number = PyLong_AsLong(value);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < 0 || number > MOST_DESCRIPTORS) {
        PyErr_Format(PyExc_ValueError, "%ld is no descriptor", number);
        return -1;
    }
    return (int)number;
}

/* --- SocketSet ------------------------------------------------------------------------------ */

static Slot *
find(SocketSet *self, int descriptor)
{
    if (descriptor >= self->count || self->slots[descriptor].owner == NULL) {
        PyErr_Format(PyExc_KeyError, "descriptor %d is not in this set", descriptor);
        return NULL;
    }
    return &self->slots[descriptor];
}

static int
make_room(SocketSet *self, int descriptor)
{
    if (descriptor < self->count)
        return 0;
    int count = self->count ? self->count : 64;
    while (count <= descriptor)
        count *= 2;
    Slot *slots = PyMem_Realloc(self->slots, (size_t)count * sizeof(Slot));
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(slots + self->count, 0, (size_t)(count - self->count) * sizeof(Slot));
    self->slots = slots;
    self->count = count;
    return 0;
}

static int
set_events(SocketSet *self, int descriptor, Slot *slot, uint32_t events)
{
    if (slot->events == events)
        return 0;
    struct epoll_event wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.events = events;
    wanted.data.u64 = (uint64_t)slot->generation << 32 | (uint32_t)descriptor;
    int action = !events ? EPOLL_CTL_DEL : slot->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(self->epoll, action, descriptor, &wanted) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    slot->events = events;
    return 0;
}

static PyObject *
set_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(keywords))
{
    SocketSet *self = (SocketSet *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->buffer = PyMem_Malloc(READ_BYTES);
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (self->buffer == NULL || self->epoll < 0) {
        if (self->buffer == NULL)
            PyErr_NoMemory();
        else
            PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
set_traverse(SocketSet *self, visitproc visit, void *arg)
{
    for (int descriptor = 0; descriptor < self->count; descriptor++)
        Py_VISIT(self->slots[descriptor].owner);
    Py_VISIT(self->on_found);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
set_clear(SocketSet *self)
{
    for (int descriptor = 0; descriptor < self->count; descriptor++)
        Py_CLEAR(self->slots[descriptor].owner);
    Py_CLEAR(self->on_found);
    return 0;
}

static void *
new_handle(Follower *follower, int kind)
{
    char *made = PyMem_RawCalloc(1, HANDLE_HEAD + uv.size(kind));
    if (made == NULL)
        return NULL;
    *(Follower **)made = follower;
    return made + HANDLE_HEAD;
}

static void
free_handle(void *handle)
{
    if (handle != NULL)
        PyMem_RawFree((char *)handle - HANDLE_HEAD);
}

static Follower *
follower_of(void *handle)
{
    return *(Follower **)((char *)handle - HANDLE_HEAD);
}

static void
forget(void *handle)
{
    Follower *follower = follower_of(handle);
    free_handle(handle);
    if (!--follower->closing)
        PyMem_RawFree(follower);
}

/* Let the loop outside wait for itself; nothing of this set is called any more. */
static void
leave(SocketSet *self)
{
    Follower *follower = self->follower;
    if (follower != NULL) {
        follower->set = NULL;
        follower->closing = 2;
        uv.close(follower->before, forget);
        uv.close(follower->busy, forget);
    }
    self->follower = NULL;
    self->loop = NULL;
}

static void
set_dealloc(SocketSet *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->follower != NULL)
        self->follower->set = NULL; /* the loop may be gone: its handle is left alone */
    set_clear(self);
    PyMem_Free(self->slots);
    PyMem_Free(self->buffer);
    if (self->epoll >= 0)
        close(self->epoll);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *
set_fileno(SocketSet *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(self->epoll);
}

static PyObject *
set_close(SocketSet *self, PyObject *Py_UNUSED(ignored))
{
    leave(self);
    if (self->epoll >= 0)
        close(self->epoll);
    self->epoll = -1;
    set_clear(self);
    Py_RETURN_NONE;
}

static PyObject *
add(SocketSet *self, PyObject *const *arguments, Py_ssize_t count, int accepts)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "add(descriptor, owner)");
        return NULL;
    }
    int descriptor = as_descriptor(arguments[0]);
    if (descriptor < 0 || make_room(self, descriptor) < 0)
        return NULL;
    Slot *slot = &self->slots[descriptor];
    if (slot->owner != NULL) {
        PyErr_Format(PyExc_ValueError, "descriptor %d is in this set", descriptor);
        return NULL;
    }
    if (++self->generation == 0)
        ++self->generation;
    slot->generation = self->generation;
    slot->events = 0;
    slot->accepts = accepts;
    slot->last_size = 0;
    if (set_events(self, descriptor, slot, EPOLLIN) < 0)
        return NULL;
    slot->owner = Py_NewRef(arguments[1]);
    Py_RETURN_NONE;
}

static PyObject *
set_add(SocketSet *self, PyObject *const *arguments, Py_ssize_t count)
{
    return add(self, arguments, count, 0);
}

static PyObject *
set_add_listener(SocketSet *self, PyObject *const *arguments, Py_ssize_t count)
{
    return add(self, arguments, count, 1);
}

static PyObject *
set_watch(SocketSet *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "watch(descriptor, reads, writes)");
        return NULL;
    }
    int descriptor = as_descriptor(arguments[0]);
    if (descriptor < 0)
        return NULL;
    int reads = PyObject_IsTrue(arguments[1]), writes = PyObject_IsTrue(arguments[2]);
    if (reads < 0 || writes < 0)
        return NULL;
    Slot *slot = find(self, descriptor);
    if (slot == NULL)
        return NULL;
    if (set_events(self, descriptor, slot, (reads ? EPOLLIN : 0) | (writes ? EPOLLOUT : 0)) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
set_remove(SocketSet *self, PyObject *argument)
{
    int descriptor = as_descriptor(argument);
    if (descriptor < 0)
        return NULL;
    Slot *slot = find(self, descriptor);
    if (slot == NULL)
        return NULL;
    if (set_events(self, descriptor, slot, 0) < 0)
        PyErr_Clear(); /* the descriptor was closed already, and with it its registration */
    slot->events = 0;
    Py_CLEAR(slot->owner);
    Py_RETURN_NONE;
}

/* Append an owner and what is to be said of it; takes the reference to the latter. */
static int
append(PyObject *found, PyObject *owner, PyObject *what)
{
    if (what == NULL)
        return -1;
    int failed = PyList_Append(found, owner) < 0 || PyList_Append(found, what) < 0;
    Py_DECREF(what);
    return failed ? -1 : 0;
}

/* Return the host and the port of an address, as `socket.accept` does. */
static PyObject *
address_of(const struct sockaddr_storage *address, socklen_t size)
{
    char host[NI_MAXHOST];
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        return Py_BuildValue("(si)", host, (int)ntohs(four->sin_port));
    }
    if (address->ss_family != AF_INET6
        || getnameinfo((const struct sockaddr *)address, size, host, sizeof host, NULL, 0,
                       NI_NUMERICHOST))
        return Py_BuildValue("(si)", "", 0);
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    return Py_BuildValue("(si)", host, (int)ntohs(six->sin6_port));
}

/* Return the connections that wait at a socket, [descriptor, address, …], or the number of an
   error. */
static PyObject *
accept_some(int listener)
{
    PyObject *found = PyList_New(0);
    for (int number = 0; found != NULL && number < MOST_ACCEPTED; number++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        int descriptor = accept4(listener, (struct sockaddr *)&address, &size,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor < 0) {
            int is_usual = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR
                || errno == ECONNABORTED;
            if (is_usual || PyList_GET_SIZE(found))
                return found;
            Py_DECREF(found);
            return PyLong_FromLong(errno);
        }
        PyObject *place = PyLong_FromLong(descriptor);
        if (place == NULL || append(found, place, address_of(&address, size)) < 0) {
            close(descriptor);
            Py_CLEAR(found);
        }
        Py_XDECREF(place);
    }
    return found;
}

/* Read from a socket into new bytes, NULL without memory; return their size, or -1 and errno. */
static Py_ssize_t
read_some(int descriptor, char *buffer, Py_ssize_t last_size, PyObject **data)
{
    Py_ssize_t size;
    if (last_size < LARGE_READ) { /* most reads are small: their bytes get just the room they need */
        size = recv(descriptor, buffer, READ_BYTES, 0);
        if (size >= 0)
            *data = PyBytes_FromStringAndSize(buffer, size);
        return size;
    }
    Py_ssize_t room = last_size > READ_BYTES / 2 ? READ_BYTES : 2 * last_size;
    *data = PyBytes_FromStringAndSize(NULL, room);
    if (*data == NULL)
        return 0;
    size = recv(descriptor, PyBytes_AS_STRING(*data), (size_t)room, 0);
    if (size < 0) {
        int problem = errno;
        Py_CLEAR(*data);
        errno = problem;
    } else {
        _PyBytes_Resize(data, size);
    }
    return size;
}

/* Read and accept what these events tell of; return owners and what happened. */
static PyObject *
handle(SocketSet *self, const struct epoll_event *events, int count)
{
    PyObject *found = PyList_New(0);
    if (found == NULL)
        return NULL;
    Py_ssize_t total = 0;
    for (int number = 0; number < count; number++) {
        int descriptor = (int)(uint32_t)events[number].data.u64;
        uint32_t generation = (uint32_t)(events[number].data.u64 >> 32);
        if (!generation) {
            self->is_outside_ready = 1;
            continue;
        }
        if (descriptor >= self->count)
            continue;
        Slot *slot = &self->slots[descriptor];
        if (slot->owner == NULL || slot->generation != generation)
            continue;
        uint32_t seen = events[number].events, wanted = slot->events;
        if (wanted & EPOLLOUT && seen & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
            if (append(found, slot->owner, Py_NewRef(Py_None)) < 0)
                goto failed;
        }
        if (!(wanted & EPOLLIN && seen & (EPOLLIN | EPOLLERR | EPOLLHUP)))
            continue;
        if (slot->accepts) {
            if (append(found, slot->owner, accept_some(descriptor)) < 0)
                goto failed;
            continue;
        }
        if (total >= GATHERED_BYTES)
            continue;
        PyObject *data;
        Py_ssize_t size = read_some(descriptor, self->buffer, slot->last_size, &data);
        if (size >= 0) {
            total += size;
            slot->last_size = (uint32_t)size;
            if (append(found, slot->owner, data) < 0)
                goto failed;
        } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            if (append(found, slot->owner, PyLong_FromLong(errno)) < 0)
                goto failed;
        }
    }
    return found;
failed:
    Py_DECREF(found);
    return NULL;
}

static PyObject *
set_gather(SocketSet *self, PyObject *Py_UNUSED(ignored))
{
    struct epoll_event events[MOST_EVENTS];
    int count = epoll_wait(self->epoll, events, MOST_EVENTS, 0);
    if (count < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    return handle(self, events, count);
}

/* --- the event loop outside -------------------------------------------------------------------- */

/* Return how long the loop outside can wait, in milliseconds; -1: until something comes. */
static int
patience(SocketSet *self)
{
    UvLoop *loop = self->loop;
    if (self->is_outside_ready || loop->watchers[0] != (void *)loop->watchers)
        return 0; /* it has something to do, or to tell the kernel */
    uv.update_time(loop);
    return uv.timeout(loop);
}

/* Hand over what has come. */
static void
hand_over(SocketSet *self, const struct epoll_event *events, int count)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_INCREF(self);
    PyObject *found = handle(self, events, count);
    if (found != NULL && PyList_GET_SIZE(found) && self->on_found != NULL) {
        PyObject *result = PyObject_CallOneArg(self->on_found, found);
        if (result == NULL)
            PyErr_WriteUnraisable(self->on_found);
        Py_XDECREF(result);
    } else if (found == NULL) {
        PyErr_WriteUnraisable(NULL);
    }
    Py_XDECREF(found);
    Py_DECREF(self);
    PyGILState_Release(state);
}

static void
nothing(void *Py_UNUSED(handle))
{
}

/* Before the loop outside waits: wait in its place for the sockets and for itself, and handle what
   the sockets have, until it has something to do. So a wait is one call of the system. */
static void
before_wait(void *handle)
{
    Follower *follower = follower_of(handle);
    struct epoll_event events[MOST_EVENTS];
    int timeout;
    uv.idle_stop(follower->busy);
    if (follower->set == NULL)
        return;
    follower->set->is_outside_ready = 0;
    do {
        SocketSet *self = follower->set;
        timeout = patience(self);
        int count = epoll_wait(self->epoll, events, MOST_EVENTS, timeout);
        if (count == 1 && !(events[0].data.u64 >> 32))
            self->is_outside_ready = 1;
        else if (count > 0)
            hand_over(self, events, count);
        if (follower->set == NULL)
            return; /* it was closed */
    } while (timeout && !follower->set->is_outside_ready);
    uv.idle_start(follower->busy, nothing); /* it looks what it has, and does not wait */
}

static int
find_libuv(const char *library)
{
    static const char *const names[] = {
        "uv_version",       "uv_backend_fd",    "uv_backend_timeout", "uv_update_time",
        "uv_handle_size",   "uv_prepare_init",  "uv_prepare_start",   "uv_idle_init",
        "uv_idle_start",    "uv_idle_stop",     "uv_unref",           "uv_close",
    };
    void **places = (void **)&uv, *made = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    int is_whole = made != NULL;
    for (size_t number = 0; is_whole && number < sizeof names / sizeof *names; number++)
        is_whole = (places[number] = dlsym(made, names[number])) != NULL;
    if (made != NULL)
        dlclose(made); /* whoever has loaded it still has it */
    return is_whole && uv.version() >> 16 == 1;
}

static PyObject *
set_follow(SocketSet *self, PyObject *const *arguments, Py_ssize_t count)
{
    const char *library = count == 3 ? PyUnicode_AsUTF8(arguments[1]) : NULL;
    if (library == NULL || self->follower != NULL || self->epoll < 0) {
        PyErr_SetString(PyExc_TypeError, "follow(loop, library, on_found), once");
        return NULL;
    }
    UvLoop *loop = PyCapsule_GetPointer(arguments[0], NULL);
    if (loop == NULL)
        return NULL;
    if (!find_libuv(library) || loop->backend < 0 || loop->backend != uv.backend(loop))
        Py_RETURN_FALSE;
    struct epoll_event wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.events = EPOLLIN;
    wanted.data.u64 = (uint32_t)loop->backend; /* its generation is 0 */
    if (epoll_ctl(self->epoll, EPOLL_CTL_ADD, loop->backend, &wanted) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Follower *follower = PyMem_RawCalloc(1, sizeof(Follower));
    if (follower != NULL) {
        follower->before = new_handle(follower, UV_PREPARE);
        follower->busy = new_handle(follower, UV_IDLE);
    }
    if (follower == NULL || follower->before == NULL || follower->busy == NULL) {
        if (follower != NULL) {
            free_handle(follower->before);
            free_handle(follower->busy);
        }
        PyMem_RawFree(follower);
        return PyErr_NoMemory();
    }
    follower->set = self;
    self->follower = follower;
    self->loop = loop;
    self->on_found = Py_NewRef(arguments[2]);
    uv.prepare_init(loop, follower->before);
    uv.idle_init(loop, follower->busy);
    uv.unref(follower->before); /* they alone do not keep the loop running */
    uv.unref(follower->busy);
    uv.prepare_start(follower->before, before_wait);
    Py_RETURN_TRUE;
}

static PyMethodDef set_methods[] = {
    {"fileno", (PyCFunction)set_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)set_close, METH_NOARGS, NULL},
    {"add", (PyCFunction)(void (*)(void))set_add, METH_FASTCALL, NULL},
    {"watch", (PyCFunction)(void (*)(void))set_watch, METH_FASTCALL, NULL},
    {"add_listener", (PyCFunction)(void (*)(void))set_add_listener, METH_FASTCALL, NULL},
    {"remove", (PyCFunction)set_remove, METH_O, NULL},
    {"follow", (PyCFunction)(void (*)(void))set_follow, METH_FASTCALL, NULL},
    {"gather", (PyCFunction)set_gather, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot set_slots[] = {
    {Py_tp_new, set_new},
    {Py_tp_dealloc, set_dealloc},
    {Py_tp_traverse, set_traverse},
    {Py_tp_clear, set_clear},
    {Py_tp_methods, set_methods},
    {0, NULL},
};

static PyType_Spec set_spec = {
    .name = "nearcast.server.sockets.calls.SocketSet",
    .basicsize = sizeof(SocketSet),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = set_slots,
};

/* --- scatter -------------------------------------------------------------------------------- */

/* Send the parts of one outbox; return the bytes that the socket took, or an errno below 0. */
static Py_ssize_t
send_parts(int descriptor, PyObject *outbox, Py_ssize_t size)
{
    Py_ssize_t count = PyList_GET_SIZE(outbox);
    ssize_t sent;
    int is_apart = size > JOINED_BYTES;
    for (Py_ssize_t number = 0; size > APART_BYTES && !is_apart && number < count; number++)
        is_apart = PyBytes_GET_SIZE(PyList_GET_ITEM(outbox, number)) >= APART_BYTES;
    if (count == 1 || !is_apart) {
        const char *start = joined;
        if (count == 1) {
            start = PyBytes_AS_STRING(PyList_GET_ITEM(outbox, 0));
        } else {
            char *at = joined;
            for (Py_ssize_t number = 0; number < count; number++) {
                PyObject *part = PyList_GET_ITEM(outbox, number);
                memcpy(at, PyBytes_AS_STRING(part), (size_t)PyBytes_GET_SIZE(part));
                at += PyBytes_GET_SIZE(part);
            }
        }
        do
            sent = send(descriptor, start, (size_t)size, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent >= 0)
            return sent;
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -(Py_ssize_t)errno;
    }
    struct iovec parts[MOST_PARTS];
    Py_ssize_t total = 0;
    for (Py_ssize_t first = 0; first < count;) {
        size_t wanted = 0;
        int number = 0;
        for (; number < MOST_PARTS && first < count; number++, first++) {
            PyObject *part = PyList_GET_ITEM(outbox, first);
            parts[number].iov_base = PyBytes_AS_STRING(part);
            parts[number].iov_len = (size_t)PyBytes_GET_SIZE(part);
            wanted += parts[number].iov_len;
        }
        struct msghdr message;
        memset(&message, 0, sizeof message);
        message.msg_iov = parts;
        message.msg_iovlen = (size_t)number;
        do
            sent = sendmsg(descriptor, &message, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0)
            return total || errno == EAGAIN || errno == EWOULDBLOCK ? total : -(Py_ssize_t)errno;
        total += sent;
        if ((size_t)sent < wanted)
            return total;
    }
    return total;
}

/* Return the size of an outbox, or -1 and an exception if it is no list of bytes. */
static Py_ssize_t
size_of(PyObject *outbox)
{
    if (!PyList_Check(outbox)) {
        PyErr_SetString(PyExc_TypeError, "an outbox is a list of bytes");
        return -1;
    }
    Py_ssize_t size = 0;
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(outbox); number++) {
        PyObject *part = PyList_GET_ITEM(outbox, number);
        if (!PyBytes_Check(part)) {
            PyErr_SetString(PyExc_TypeError, "an outbox is a list of bytes");
            return -1;
        }
        size += PyBytes_GET_SIZE(part);
    }
    return size;
}

static PyObject *
scatter(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(arguments[0]) || !PyList_Check(arguments[1])
        || PyList_GET_SIZE(arguments[0]) != PyList_GET_SIZE(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "scatter(descriptors, outboxes): two lists of one length");
        return NULL;
    }
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(arguments[0]); number++) {
        if (as_descriptor(PyList_GET_ITEM(arguments[0], number)) < 0
            || size_of(PyList_GET_ITEM(arguments[1], number)) < 0)
            return NULL; /* before anything is sent */
    }
    PyObject *short_ones = NULL;
    for (Py_ssize_t number = 0; number < PyList_GET_SIZE(arguments[0]); number++) {
        PyObject *outbox = PyList_GET_ITEM(arguments[1], number);
        int descriptor = as_descriptor(PyList_GET_ITEM(arguments[0], number));
        Py_ssize_t size = size_of(outbox);
        if (!size)
            continue;
        Py_ssize_t sent = send_parts(descriptor, outbox, size);
        if (sent == size)
            continue;
        if (short_ones == NULL && (short_ones = PyList_New(0)) == NULL)
            goto failed;
        PyObject *place = PyLong_FromSsize_t(number);
        if (place == NULL)
            goto failed;
        int bad = append(short_ones, place, PyLong_FromSsize_t(sent)) < 0;
        Py_DECREF(place);
        if (bad)
            goto failed;
    }
    if (short_ones == NULL)
        Py_RETURN_NONE;
    return short_ones;
failed:
    Py_XDECREF(short_ones);
    return NULL;
}

/* --- the module ------------------------------------------------------------------------------ */

static PyMethodDef functions[] = {
    {"scatter", (PyCFunction)(void (*)(void))scatter, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int
fill(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &set_spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed < 0 ? failed : PyModule_AddObjectRef(module, "IS_IN_C", Py_True);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "nearcast.server.sockets.calls",
    .m_doc = "Many sockets in one call (see calls.py).",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit_calls(void)
{
    return PyModuleDef_Init(&definition);
}
