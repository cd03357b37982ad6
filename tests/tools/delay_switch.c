/* An Ethernet switch in user space whose ports have a rate and a one-way delay, for kernels without
 * netem. It opens one TAP device, eth0, in each named network namespace.
 *
 *     cc -O2 -o delay_switch delay_switch.c
 *     ./delay_switch RATE_MBIT DELAY_US MTU NAMESPACE ...
 *
 * A packet leaves its host at RATE, takes DELAY, and enters its receiver at RATE (cut through: at
 * equal rates it is serialised once). A host that sends faster is held back, nothing is dropped.
 * "ready" on stdout says that the ports are there; SIGTERM, or the parent's end, ends the switch. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PORTS 8
#define SLOTS 16384              /* packets under way to a port, a power of two */
#define FRAME 24                 /* bytes of preamble, checksum and gap around a packet */
#define BURST 16                 /* packets read from a port at a time */
#define AHEAD_NS 1000000         /* a port is read while its uplink is busy for less than this */

typedef struct { int64_t due; int len; unsigned char *bytes; } packet;
typedef struct {
    int fd, known;
    unsigned char mac[6];
    int64_t up_free, down_free;  /* when the link from and to the host is free again, ns */
    packet queue[SLOTS];         /* to the host, in order of due */
    unsigned head, tail;
} port;

static port ports[PORTS];
static int n_ports;
static volatile sig_atomic_t ended;

static void on_signal(int number) { (void)number; ended = 1; }

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void check(int failed, const char *what) {
    if (failed) { perror(what); exit(1); }
}

static void open_port(port *p, const char *namespace, int mtu) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    check(space < 0 || setns(space, CLONE_NEWNET), path);
    struct ifreq request = {0};
    strcpy(request.ifr_name, "eth0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    p->fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    check(p->fd < 0 || ioctl(p->fd, TUNSETIFF, &request), "/dev/net/tun");
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    request.ifr_mtu = mtu;
    check(ioctl(any, SIOCSIFMTU, &request), "mtu");
    close(any);
    close(space);
}

static void deliver(port *p, int64_t t) {
    while (p->head != p->tail && p->queue[p->head % SLOTS].due <= t) {
        packet *first = &p->queue[p->head++ % SLOTS];
        if (write(p->fd, first->bytes, first->len) < 0 && errno != EIO) perror("write");
        free(first->bytes);
    }
}

static void forward(port *from, const unsigned char *bytes, int len, double ns_per_byte,
                    int64_t delay, int64_t t) {
    int64_t serial = (len + FRAME) * ns_per_byte;
    memcpy(from->mac, bytes + 6, 6);
    from->known = 1;
    from->up_free = (from->up_free > t ? from->up_free : t) + serial;
    port *only = NULL;           /* the owner of the address; all others for a broadcast */
    for (port *p = ports; p < ports + n_ports; p++)
        if (p->known && !memcmp(p->mac, bytes, 6)) only = p;
    for (port *to = ports; to < ports + n_ports; to++) {
        if (to == from || (only && to != only) || to->tail - to->head >= SLOTS) continue;
        int64_t due = from->up_free + delay;
        if (due < to->down_free + serial) due = to->down_free + serial;
        to->down_free = due;
        packet *last = &to->queue[to->tail++ % SLOTS];
        *last = (packet){due, len, malloc(len)};
        memcpy(last->bytes, bytes, len);
    }
}

int main(int argc, char **argv) {
    if (argc < 6 || argc > 4 + PORTS) {
        fprintf(stderr, "usage: %s RATE_MBIT DELAY_US MTU NAMESPACE ... (2 to 8)\n", argv[0]);
        return 2;
    }
    double ns_per_byte = 8e3 / atof(argv[1]);
    int64_t delay = atof(argv[2]) * 1000;
    n_ports = argc - 4;
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < n_ports; i++) open_port(&ports[i], argv[4 + i], atoi(argv[3]));
    setns(own, CLONE_NEWNET);
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTERM, on_signal);
    signal(SIGINT, SIG_IGN);     /* the terminal's, which whoever started this sees too */
    puts("ready");
    fflush(stdout);
    static unsigned char bytes[65600];
    while (!ended) {
        int64_t t = now(), next = t + 100000000;
        struct pollfd polled[PORTS];
        for (int i = 0; i < n_ports; i++) {
            port *p = &ports[i];
            deliver(p, t);
            if (p->head != p->tail && p->queue[p->head % SLOTS].due < next)
                next = p->queue[p->head % SLOTS].due;
            int may_send = p->up_free - t < AHEAD_NS;
            if (!may_send && p->up_free - AHEAD_NS / 2 < next) next = p->up_free - AHEAD_NS / 2;
            polled[i] = (struct pollfd){p->fd, may_send ? POLLIN : 0, 0};
        }
        int64_t wait = next - now();
        if (wait < 0) wait = 0;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        if (ppoll(polled, n_ports, &timeout, NULL) <= 0) continue;
        for (int i = 0; i < n_ports; i++) {
            if (!(polled[i].revents & POLLIN)) continue;
            for (int k = 0; k < BURST; k++) {
                int len = read(ports[i].fd, bytes, sizeof bytes);
                if (len <= 0) break;
                t = now();
                forward(&ports[i], bytes, len, ns_per_byte, delay, t);
                if (ports[i].up_free - t >= AHEAD_NS) break;
            }
        }
    }
    return 0;
}
