// Compiles WGSL texts with Dawn, a second implementation of WebGPU, under the default limits: what
// every device of WebGPU must offer. No GPU is needed.
//
// usage: node check.mjs PACKAGE < [{code, entry, kinds, pushBytes, constants}] > ["" | message]
import { pathToFileURL } from 'node:url';
import { join } from 'node:path';
import { readFileSync } from 'node:fs';

const { create, globals } = await import(pathToFileURL(join(process.argv[2], 'index.js')));
Object.assign(globalThis, globals);
const gpu = create(['backend=null']);  // kept: Dawn crashes once it is collected
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: ['subgroups'] });

function boundAs(type) {
    if (type.endsWith('float')) return { texture: { sampleType: type } };
    if (type === 'read-only') return { storageTexture: { access: type, format: 'rgba32float' } };
    return { buffer: { type } };
}

function layoutOf(text) {
    const entries = text.kinds.map((type, binding) => ({
        binding, visibility: GPUShaderStage.COMPUTE, ...boundAs(type),
    }));
    const group = device.createBindGroupLayout({ entries });
    return device.createPipelineLayout({ bindGroupLayouts: [group] });
}

async function check(text) {
    device.pushErrorScope('validation');
    const module = device.createShaderModule({ code: text.code });
    const notes = (await module.getCompilationInfo()).messages;
    let message = notes.filter((n) => n.type === 'error')
        .map((n) => `${n.lineNum}:${n.linePos}: ${n.message}`).join('\n');
    try {
        await device.createComputePipelineAsync({
            layout: layoutOf(text),
            compute: { module, entryPoint: text.entry, constants: text.constants },
        });
    } catch (error) {
        message ||= error.message;
    }
    const scoped = await device.popErrorScope();
    return message || (scoped ? scoped.message : '');
}

const answers = [];
for (const text of JSON.parse(readFileSync(0, 'utf8'))) {
    answers.push(await check(text));
}
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
