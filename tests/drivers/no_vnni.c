/* Makes CPUID say that there is neither VNNI, AMX nor AVX-512: preloaded, on x86-64 Linux whose
   processor can fault on CPUID (the flag "cpuid_fault"). ONNX Runtime then computes as it does on
   processors with AVX2 and no VNNI. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

static void allow(unsigned long is_allowed) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, is_allowed); }

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)regs[REG_RIP];
    (void)info;
    if (at[0] != 0x0f || at[1] != 0xa2) { /* another fault: let it happen */
        signal(number, SIG_DFL);
        return;
    }
    uint32_t leaf = (uint32_t)regs[REG_RAX], sub = (uint32_t)regs[REG_RCX];
    uint32_t a = leaf, b, c = sub, d;
    allow(1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    allow(0);
    if (leaf == 7 && sub == 0) {
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        d &= ~(BIT(2) | BIT(3) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
    }
    if (leaf == 7 && sub == 1) {
        a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
        d &= ~(BIT(4) | BIT(5) | BIT(10) | BIT(19));
    }
    regs[REG_RAX] = a, regs[REG_RBX] = b, regs[REG_RCX] = c, regs[REG_RDX] = d;
    regs[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    allow(0);
}
