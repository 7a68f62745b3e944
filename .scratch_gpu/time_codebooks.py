"""Shares of a copy, and linear layers against bfloat16's: for the report, not kept."""
import statistics, sys, torch
import torch.nn.functional as F
from blockscale.core.operand import Quantizer, operand
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear

def ms(run, n=5, inner=10):
    for _ in range(4): run()
    t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); [run() for _ in range(inner)]; b.record(); b.synchronize(); t.append(a.elapsed_time(b)/inner)
    return statistics.median(t)

what = sys.argv[1] if len(sys.argv) > 1 else "all"
print(torch.cuda.get_device_name())
if what in ("all", "primitives"):
    N=16384
    src=torch.empty(N,N,device="cuda"); dst=torch.empty_like(src)
    copy=2*src.nbytes/ms(lambda: dst.copy_(src)); del src,dst
    print("copy GB/s", copy/1e6)
    for fmt in ("int4:group64:fp32","nf4:group64:fp32","fp4:group64:fp16","iq4_nl:group32:fp16","log8f3:group64:fp32","uint4:group32:fp16:asym","uint4:group32:fp16:offset","int4:group64:fp32:offset","nf4:group64:fp32:offset"):
        row=[]
        for dt in (torch.float32, torch.bfloat16):
            x=torch.randn(N,N,device="cuda",dtype=dt)
            codes,*parts=P.choose_quantize(x,fmt,None)
            size=x.nbytes+codes.nbytes+sum(p.nbytes for p in parts)
            row.append(size/ms(lambda: P.choose_quantize(x,fmt,None))/copy)
            by=Quantizer(None,None,None,fmt,None)
            row.append(2*x.nbytes/ms(lambda: P.fake_quantize(x,by))/copy)
            o=operand(codes,P.from_list(parts,parse(fmt)),fmt,N)
            row.append(size/ms(lambda: P.dequantize(o,dt))/copy)
            del x,codes,parts,o
        print(f"{fmt:30s} f32 q {row[0]:.2f} fake {row[1]:.2f} deq {row[2]:.2f} | bf16 q {row[3]:.2f} fake {row[4]:.2f} deq {row[5]:.2f}", flush=True)
if what in ("all", "linear"):
    n,k=8192,8192
    none=Quantizer(None,None,None,"",None)
    w=torch.randn(n,k,device="cuda").bfloat16()
    dense=[w.clone() for _ in range(4)]
    MS=(1,16,32,64,256,1024,4096)
    base={}
    for m in MS:
        x=torch.randn(m,k,device="cuda").bfloat16(); it=[0]
        def f():
            it[0]+=1; return F.linear(x,dense[it[0]%4])
        base[m]=ms(f)
    print("bf16 ms", {m: round(v,4) for m,v in base.items()})
    for fmt in ("int4:group64:fp32","nf4:group64:fp32","fp4:group64:fp16","iq4_nl:group32:fp16","nf4:channel0:fp32","nf4:group32:e8m0/floor","uint4:group32:fp16:asym","uint4:group32:fp16:offset","nf4:group16:e4m3"):
        os_=[]
        for i in range(4):
            codes,*parts=P.choose_quantize(torch.randn(n,k,device="cuda"),fmt,None)
            os_.append(operand(codes,P.from_list(parts,parse(fmt)),fmt,k))
        row=[]
        for m in MS:
            x=torch.randn(m,k,device="cuda").bfloat16(); it=[0]
            def f():
                it[0]+=1; return linear(x,os_[it[0]%4],None,none)
            row.append(ms(f,3,8)/base[m])
        print(f"{fmt:30s}", " ".join(f"{m}:{r:.2f}" for m,r in zip(MS,row)), flush=True)
