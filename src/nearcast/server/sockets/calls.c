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

/* Who waits for whom: always the one for the other, or nobody learns that something has come. */
enum { FOLLOWS, LEADS, LOST };

typedef struct {
    PyObject_HEAD
    int epoll;
    int count; /* of `slots` */
    uint32_t generation;
    Slot *slots; /* by descriptor */
    char *buffer;
    UvLoop *loop; /* the event loop outside; NULL: not known, and it waits for this set */
    int (*timeout)(const void *); /* libuv's */
    void (*update_time)(void *);
    int state;
    int is_outside_ready;
} SocketSet;

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
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
set_clear(SocketSet *self)
{
    for (int descriptor = 0; descriptor < self->count; descriptor++)
        Py_CLEAR(self->slots[descriptor].owner);
    return 0;
}

static void
set_dealloc(SocketSet *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
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
    self->loop = NULL;
    self->state = FOLLOWS;
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

static PyObject *
set_follow(SocketSet *self, PyObject *const *arguments, Py_ssize_t count)
{
    const char *library;
    if (count != 2 || (library = PyUnicode_AsUTF8(arguments[1])) == NULL) {
        PyErr_SetString(PyExc_TypeError, "follow(loop, library)");
        return NULL;
    }
    UvLoop *loop = PyCapsule_GetPointer(arguments[0], NULL);
    if (loop == NULL)
        return NULL;
    void *made = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (made == NULL)
        Py_RETURN_FALSE;
    unsigned int (*version)(void);
    int (*backend)(const void *);
    *(void **)&version = dlsym(made, "uv_version");
    *(void **)&backend = dlsym(made, "uv_backend_fd");
    *(void **)&self->timeout = dlsym(made, "uv_backend_timeout");
    *(void **)&self->update_time = dlsym(made, "uv_update_time");
    if (version && backend && self->timeout && self->update_time && version() >> 16 == 1
        && loop->backend >= 0 && loop->backend == backend(loop))
        self->loop = loop;
    dlclose(made); /* whoever loaded it still has it */
    return PyBool_FromLong(self->loop != NULL);
}

static int
control(int epoll, int action, int descriptor)
{
    struct epoll_event wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.events = EPOLLIN;
    wanted.data.fd = descriptor; /* as libuv does; in our own set it makes the generation 0 */
    return epoll_ctl(epoll, action, descriptor, &wanted);
}

/* Let the loop outside wait for this set. */
static int
follow_again(SocketSet *self)
{
    if (self->state == FOLLOWS)
        return 0;
    if (self->state == LEADS)
        control(self->epoll, EPOLL_CTL_DEL, self->loop->backend);
    self->state = LOST;
    if (control(self->loop->backend, EPOLL_CTL_ADD, self->epoll) < 0 && errno != EEXIST) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->state = FOLLOWS;
    return 0;
}

/* Wait for the loop outside, in place of the other way round. Neither may be in the other's set. */
static int
lead(SocketSet *self)
{
    if (self->state == LEADS)
        return 0;
    if (control(self->loop->backend, EPOLL_CTL_DEL, self->epoll) < 0) {
        self->loop = NULL; /* it does not wait for this set */
        return -1;
    }
    self->state = LOST;
    if (control(self->epoll, EPOLL_CTL_ADD, self->loop->backend) < 0)
        return -1;
    self->state = LEADS;
    return 0;
}

/* Return how long the loop outside can wait, in milliseconds; -1: until something comes. */
static int
patience(SocketSet *self)
{
    UvLoop *loop = self->loop;
    if (self->is_outside_ready || loop->watchers[0] != (void *)loop->watchers)
        return 0;
    self->update_time(loop);
    return self->timeout(loop);
}

static PyObject *
set_wait(SocketSet *self, PyObject *Py_UNUSED(ignored))
{
    int timeout = self->loop == NULL || self->state == LOST ? 0 : patience(self);
    if (!timeout || lead(self) < 0) {
        self->is_outside_ready = 0;
        if (follow_again(self) < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    struct epoll_event events[MOST_EVENTS];
    int count, problem;
    Py_BEGIN_ALLOW_THREADS
    count = epoll_wait(self->epoll, events, MOST_EVENTS, timeout);
    problem = errno;
    Py_END_ALLOW_THREADS
    if (count < 0 && problem != EINTR) {
        errno = problem;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (count <= 0)
        self->is_outside_ready = 1; /* a timer, or a signal */
    return handle(self, events, count);
}

static PyMethodDef set_methods[] = {
    {"fileno", (PyCFunction)set_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)set_close, METH_NOARGS, NULL},
    {"add", (PyCFunction)(void (*)(void))set_add, METH_FASTCALL, NULL},
    {"watch", (PyCFunction)(void (*)(void))set_watch, METH_FASTCALL, NULL},
    {"add_listener", (PyCFunction)(void (*)(void))set_add_listener, METH_FASTCALL, NULL},
    {"remove", (PyCFunction)set_remove, METH_O, NULL},
    {"follow", (PyCFunction)(void (*)(void))set_follow, METH_FASTCALL, NULL},
    {"wait", (PyCFunction)set_wait, METH_NOARGS, NULL},
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
