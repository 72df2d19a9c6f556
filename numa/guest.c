/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognizes hypervisors: by the processor's bit (x86), by /sys/hypervisor (Xen), by the device
 * tree (arm64), and by the names that firmware gives the machine. At start-up only; one thread.
 */
#include "numa/guest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "numa/kernel_file.h"

static int cpu_bit = -1; /* -1: that of the processor */

void guest_test_cpu(int test_cpu_bit)
{
	cpu_bit = test_cpu_bit;
}

/* CPUID leaf 1, ECX bit 31: always 0 on a machine without hypervisor. */
static bool cpu_is_virtual(void)
{
#if defined(__x86_64__)
	unsigned a, b, c = 0, d;

	if (cpu_bit < 0)
		return __get_cpuid(1, &a, &b, &c, &d) && c >> 31;
#endif
	return cpu_bit > 0;
}

/* Names in the firmware's tables (DMI) of machines that hypervisors make. */
static const char *const maker[] = {"QEMU", "KVM", "VMware", "Xen", "innotek", "VirtualBox",
	"Parallels", "Bochs", "Google", "Amazon EC2", "Virtual Machine", "OpenStack", "Apple Virt"};

const char *guest_sign(void)
{
	static const char *const file[] = {"/sys/class/dmi/id/sys_vendor",
		"/sys/class/dmi/id/product_name", "/sys/class/dmi/id/bios_vendor"};
	static char sign[160];
	char line[96];

	if (cpu_is_virtual())
		return "the processor reports a hypervisor (CPUID)";
	if (kernel_file_line("/sys/hypervisor/type", line, sizeof(line))) {
		snprintf(sign, sizeof(sign), "/sys/hypervisor/type is %s", line);
		return sign;
	}
	if (kernel_file_line("/proc/device-tree/hypervisor/compatible", line, sizeof(line))) {
		snprintf(sign, sizeof(sign), "the device tree has a hypervisor: %s", line);
		return sign;
	}
#if defined(__x86_64__)
	if (cpu_bit < 0) /* the processor's bit is reliable; clouds name bare machines as guests */
		return NULL;
#endif
	for (unsigned i = 0; i < sizeof(file) / sizeof(file[0]); i++) {
		if (!kernel_file_line(file[i], line, sizeof(line)))
			continue;
		for (unsigned m = 0; m < sizeof(maker) / sizeof(maker[0]); m++)
			if (strstr(line, maker[m])) {
				snprintf(sign, sizeof(sign), "%s is %s", file[i], line);
				return sign;
			}
	}
	return NULL;
}
