/* The least that forwarding costs: an epoll loop with as much of MQTT as the load generator needs.
 *
 *     floor PORT
 *
 * One read for each socket that is ready, one write for each that has something to send. A topic is
 * looked up in a hash table, exactly; `#` and `+` mean nothing. There are no sessions, limits,
 * timers, checks or logs: what a broker needs beyond this is what it does for its clients. MQTT 3.1.1
 * only. QoS 1 and 2 are acknowledged and forwarded at once; nobody waits for an acknowledgement.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 100000     /* descriptors */
#define BUCKETS 65536
#define READ_BYTES (1 << 20)

typedef struct {
    char *rest; /* of a packet that is not complete */
    size_t rest_size, rest_room;
    char *out;
    size_t out_size, out_room;
    uint16_t packet_id;
    char is_dirty, is_waiting; /* has output; waits until the socket takes it */
} Client;

typedef struct Topic {
    struct Topic *next;
    size_t size, count, room;
    struct { int fd, qos; } *subscribers;
    char name[];
} Topic;

static Client clients[MOST];
static Topic *topics[BUCKETS];
static int dirty[MOST], dirty_count, epoll;
static char buffer[READ_BYTES];

static void *
grown(void *place, size_t *room, size_t wanted, size_t each)
{
    if (wanted <= *room)
        return place;
    *room = wanted * 2;
    place = realloc(place, *room * each);
    if (place == NULL)
        abort();
    return place;
}

static Topic *
topic_of(const char *name, size_t size, int make)
{
    uint32_t hash = 2166136261u;
    for (size_t at = 0; at < size; at++)
        hash = (hash ^ (unsigned char)name[at]) * 16777619u;
    Topic **place = &topics[hash % BUCKETS];
    for (; *place != NULL; place = &(*place)->next)
        if ((*place)->size == size && !memcmp((*place)->name, name, size))
            return *place;
    if (!make)
        return NULL;
    *place = calloc(1, sizeof(Topic) + size);
    if (*place == NULL)
        abort();
    (*place)->size = size;
    memcpy((*place)->name, name, size);
    return *place;
}

static void
put(int fd, const void *data, size_t size)
{
    Client *client = &clients[fd];
    client->out = grown(client->out, &client->out_room, client->out_size + size, 1);
    memcpy(client->out + client->out_size, data, size);
    client->out_size += size;
    if (!client->is_dirty) {
        client->is_dirty = 1;
        dirty[dirty_count++] = fd;
    }
}

static void
answer(int fd, int first, const unsigned char *id)
{
    unsigned char packet[4] = {(unsigned char)first, 2, id[0], id[1]};
    put(fd, packet, 4);
}

static void
put_head(int fd, int first, size_t size)
{
    unsigned char head[5] = {(unsigned char)first};
    int count = 1;
    do {
        head[count++] = (unsigned char)((size & 127) | (size > 127 ? 128 : 0));
        size >>= 7;
    } while (size);
    put(fd, head, (size_t)count);
}

static void
publish(int fd, const unsigned char *packet, const unsigned char *body, size_t size)
{
    int qos = packet[0] >> 1 & 3;
    size_t name_size = (size_t)body[0] << 8 | body[1], head = 2 + name_size;
    const unsigned char *payload = body + head;
    if (qos) {
        answer(fd, qos == 1 ? 0x40 : 0x50, payload);
        payload += 2;
    }
    size_t payload_size = (size_t)(body + size - payload);
    Topic *topic = topic_of((const char *)body + 2, name_size, 0);
    for (size_t number = 0; topic != NULL && number < topic->count; number++) {
        int other = topic->subscribers[number].fd, its = topic->subscribers[number].qos;
        int best = qos < its ? qos : its;
        put_head(other, 0x30 | best << 1, head + payload_size + (best ? 2 : 0));
        put(other, body, head);
        if (best) {
            uint16_t id = ++clients[other].packet_id ? clients[other].packet_id
                                                     : ++clients[other].packet_id;
            unsigned char bytes[2] = {(unsigned char)(id >> 8), (unsigned char)id};
            put(other, bytes, 2);
        }
        put(other, payload, payload_size);
    }
}

static void
subscribe(int fd, const unsigned char *body, size_t size)
{
    size_t at = 2, count = 0;
    unsigned char granted[1024];
    while (at + 2 < size && count < sizeof granted) {
        size_t name_size = (size_t)body[at] << 8 | body[at + 1];
        Topic *topic = topic_of((const char *)body + at + 2, name_size, 1);
        at += 2 + name_size;
        topic->subscribers
            = grown(topic->subscribers, &topic->room, topic->count + 1, sizeof *topic->subscribers);
        topic->subscribers[topic->count].fd = fd;
        topic->subscribers[topic->count++].qos = granted[count++] = body[at++];
    }
    put_head(fd, 0x90, 2 + count);
    put(fd, body, 2);
    put(fd, granted, count);
}

static void
take(int fd, const unsigned char *packet, const unsigned char *body, size_t size)
{
    switch (packet[0] >> 4) {
    case 1: put(fd, "\x20\x02\0\0", 4); break;
    case 3: publish(fd, packet, body, size); break;
    case 5: answer(fd, 0x62, body); break;
    case 6: answer(fd, 0x70, body); break;
    case 8: subscribe(fd, body, size); break;
    case 12: put(fd, "\xd0\0", 2); break;
    }
}

/* Take all whole packets; return how many bytes they were. */
static size_t
take_all(int fd, const unsigned char *data, size_t size)
{
    size_t at = 0;
    while (size - at >= 2) {
        size_t body = at + 1, length = 0;
        int shift = 0, more = 1;
        for (; more && body < size && shift < 28; body++, shift += 7) {
            length |= (size_t)(data[body] & 127) << shift;
            more = data[body] & 128;
        }
        if (more || size - body < length)
            break;
        take(fd, data + at, data + body, length);
        at = body + length;
    }
    return at;
}

static void
forget(int fd)
{
    for (int number = 0; number < BUCKETS; number++)
        for (Topic *topic = topics[number]; topic != NULL; topic = topic->next)
            for (size_t at = topic->count; at-- > 0;)
                if (topic->subscribers[at].fd == fd)
                    topic->subscribers[at] = topic->subscribers[--topic->count];
    free(clients[fd].rest);
    free(clients[fd].out);
    memset(&clients[fd], 0, sizeof clients[fd]);
    close(fd);
}

static void
read_from(int fd)
{
    Client *client = &clients[fd];
    ssize_t size = recv(fd, buffer, sizeof buffer, 0);
    if (size <= 0) {
        if (size == 0 || (errno != EAGAIN && errno != EINTR))
            forget(fd);
        return;
    }
    if (client->rest_size == 0) {
        size_t used = take_all(fd, (unsigned char *)buffer, (size_t)size);
        size -= (ssize_t)used;
        memmove(buffer, buffer + used, (size_t)size);
    }
    if (size == 0)
        return;
    client->rest = grown(client->rest, &client->rest_room, client->rest_size + (size_t)size, 1);
    memcpy(client->rest + client->rest_size, buffer, (size_t)size);
    client->rest_size += (size_t)size;
    size_t used = take_all(fd, (unsigned char *)client->rest, client->rest_size);
    client->rest_size -= used;
    memmove(client->rest, client->rest + used, client->rest_size);
}

static void
watch(int fd, int action, uint32_t events)
{
    struct epoll_event wanted = {.events = events, .data.fd = fd};
    epoll_ctl(epoll, action, fd, &wanted);
}

static void
write_to(int fd)
{
    Client *client = &clients[fd];
    client->is_dirty = 0;
    if (client->out_size == 0)
        return; /* it has gone */
    ssize_t sent = send(fd, client->out, client->out_size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
        client->out_size -= (size_t)sent;
        memmove(client->out, client->out + sent, client->out_size);
    }
    int is_waiting = client->out_size > 0;
    if (is_waiting != client->is_waiting)
        watch(fd, EPOLL_CTL_MOD, EPOLLIN | (is_waiting ? EPOLLOUT : 0));
    client->is_waiting = (char)is_waiting;
}

static void
accept_from(int listener)
{
    int yes = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (fd >= MOST) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    watch(fd, EPOLL_CTL_ADD, EPOLLIN);
}

int
main(int count, char **words)
{
    if (count != 2)
        return 2;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) {
        perror("floor");
        return 1;
    }
    epoll = epoll_create1(0);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN);
    struct epoll_event events[256];
    for (;;) {
        int found = epoll_wait(epoll, events, 256, -1);
        for (int number = 0; number < found; number++) {
            int fd = events[number].data.fd;
            if (fd == listener)
                accept_from(listener);
            else {
                if (events[number].events & EPOLLOUT)
                    write_to(fd);
                if (events[number].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                    read_from(fd);
            }
        }
        for (int number = 0; number < dirty_count; number++)
            write_to(dirty[number]);
        dirty_count = 0;
    }
}
