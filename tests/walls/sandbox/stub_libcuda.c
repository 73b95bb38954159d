/* Does what cuInit is known to need of a machine: nodes of devices, files in /sys, and an abstract local socket. */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int can_open(const char *path, int flags) {
    int descriptor = open(path, flags | O_CLOEXEC);
    if (descriptor < 0) return 0;
    close(descriptor);
    return 1;
}

int cuInit(unsigned int flags) {
    const char *nodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0"};
    for (int i = 0; i < 4; i++)
        if (!can_open(nodes[i], O_RDWR)) return 100; /* CUDA_ERROR_NO_DEVICE */
    if (!can_open("/sys/bus/pci/devices/0000:01:00.0/numa_node", O_RDONLY)) return 304; /* CUDA_ERROR_OPERATING_SYSTEM */
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    if (local < 0) return 304;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cuda-uvmfd-%d", getpid());
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name.sun_path + 1);
    int bound = bind(local, (struct sockaddr *)&name, size);
    close(local);
    return bound ? 304 : 0;
}

/* The process now has a GPU. */
int cuCtxCreate(void) { return open("/dev/nvidia0", O_RDWR | O_CLOEXEC); }
